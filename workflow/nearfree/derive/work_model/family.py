"""What calibrates together: kernels that share a form of T(N) and its constants."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from msgspec import Struct

Array = npt.NDArray[np.float64]
Flags = npt.NDArray[np.bool_]
Places = npt.NDArray[np.int64]
FLOP_PER_US = 1e6
"""FLOPs a microsecond of a TFLOP/s."""
Features = Mapping[str, Any]
"""What a form asks of rows of questions: arrays [rows, 1] of facts and shapes, [rows, grid] of what
changes with N, all float64."""
Values = Mapping[str, float]


class Constant(Struct, frozen=True, kw_only=True):
    """A constant of a form: where its calibration starts and between which ends it is sought."""

    name: str
    unit: str
    meaning: str
    start: float
    low: float
    high: float


def _of_any(*, backend: str, kernel: str | None, cached: bool) -> bool:
    del backend, kernel, cached
    return True


class Family(Struct, frozen=True, kw_only=True):
    """Kernels of one form.

    It is the form of some kinds of modules, for the `backend`, `kernel` and `cached` (a call over a
    KV cache) that it `speaks` of; a setting must have the fields `needs` besides those of any law.
    `latency_us` maps features, constants and a hypothesis to T(N) in microseconds, [rows, grid].
    There is a hypothesis for each way in which what the source does not say may be (a library's
    tile), with constants of its own; the prediction is the geometric mean over them.
    """

    name: str
    meaning: str
    modules: tuple[str, ...]
    speaks: Callable[..., bool] = _of_any
    needs: tuple[str, ...] = ()
    constants: tuple[Constant, ...]
    hypotheses: tuple[str, ...]
    latency_us: Callable[[Features, Values, str], Array]


def power_mean_sum(sharpness: float, *parts: Array) -> Array:
    """Return (sum of parts^p)^(1/p): a sum at p = 1, the largest part as p grows."""
    largest = np.maximum.reduce(parts)
    scaled = sum((part / largest) ** sharpness for part in parts)
    return np.asarray(largest * scaled ** (1.0 / sharpness))
