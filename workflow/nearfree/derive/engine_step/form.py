"""Time of an engine's step outside of its modules: kernels between modules, and the host.

T_step(N) = sum of modules - overlapped time + layers (layer_us + K 4 b N d_model / beta)
+ step_us + b request_us, with K kernels per layer that read and write every token's row: two norms
with their residual sums, the rotary embedding, the write to the cache, and the activation or the
router's choice of experts. Each engine has its own three constants, fitted to published steps of
whole models.
"""

from collections.abc import Mapping

import numpy as np
from msgspec import Struct

from nearfree.backends.names import BackendRelease, is_since
from nearfree.decoders.ranks.engines import Engine
from nearfree.derive.work_model.family import Array, Constant

LAYER_KERNELS = 5
"""Kernels per layer, between its modules, that read and write all rows."""
_BYTES = 4.0
"""Bytes moved per 16-bit element: it is read once and written once."""
CONSTANTS = (
    Constant(name="layer_us", unit="us", start=5.0, low=0.0, high=200.0,
             meaning="what the kernels between a layer's modules take, however few rows"),
    Constant(name="step_us", unit="us", start=300.0, low=0.0, high=5000.0,
             meaning="what the scheduler and sampling take of a step"),
    Constant(name="request_us", unit="us", start=5.0, low=0.0, high=200.0,
             meaning="what the host takes for each request of a step"),
)  # fmt: skip


class StepConstants(Struct, frozen=True, kw_only=True):
    """The constants of an engine's step, in microseconds."""

    layer_us: float
    step_us: float
    request_us: float

    @classmethod
    def of(cls, values: Mapping[str, float]) -> "StepConstants":
        """Return the constants that a mapping holds by name."""
        return cls(**{constant.name: values[constant.name] for constant in CONSTANTS})


def between_us(
    constants: StepConstants, *, layers: float, d_model: int, tokens: Array, bandwidth_gb_s: float
) -> Array:
    """Return the time of the kernels between modules in one step, in microseconds.

    Parameters
    ----------
    layers
        Layers, each of an attention and an FFN.
    tokens
        Rows of a rank, b N; the result has the same shape.
    bandwidth_gb_s
        beta of the GPU.
    """
    moved_us = LAYER_KERNELS * _BYTES * d_model * tokens / (bandwidth_gb_s * 1e3)
    return np.asarray(layers * (constants.layer_us + moved_us))


def host_us(constants: StepConstants, *, batch: int) -> float:
    """Return the host time of a step of `batch` requests, in microseconds."""
    return constants.step_us + constants.request_us * batch


def hidden_us(
    engine: Engine, release: BackendRelease, tokens: Array, shared: Array, routed: Array
) -> Array:
    """Return the part of the shared experts' time that overlaps the router and routed experts.

    `tokens` are the rows that the layer sees, b N; `shared` and `routed` are the times of each run
    alone, in microseconds; all are [grid].
    """
    if not is_since(release.version, engine.beside.first):
        return np.zeros_like(shared)
    within = np.ones_like(tokens, dtype=bool)
    if engine.beside.most_tokens is not None:
        within = tokens <= engine.beside.most_tokens
    return np.where(within, np.minimum(shared, routed), 0.0)
