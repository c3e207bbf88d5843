"""What an engine's step takes besides its modules: kernels between them, and its host.

T_step(N) = sum of modules - what runs beside others + layers (layer_us + K 4 b N d_model / beta)
+ step_us + b request_us, with K kernels a layer that read and write the rows of a token: two norms
with their residual sums, the rotation, writing to the cache, and the activation or the choice of
experts. The three constants are an engine's, fitted to published steps of whole models.
"""

from collections.abc import Mapping

import numpy as np
from msgspec import Struct
from packaging.version import InvalidVersion, Version

from nearfree.backends.names import BackendRelease
from nearfree.decoders.engines import Engine
from nearfree.derive.work_model.family import Array, Constant

LAYER_KERNELS = 5
"""Kernels of a layer between its modules that read and write all rows."""
_BYTES = 4.0
"""Of an element of 16 bits that is read and written."""
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
        """Return those of a mapping by name."""
        return cls(**{each.name: values[each.name] for each in CONSTANTS})


def between_us(
    constants: StepConstants, *, layers: float, d_model: int, tokens: Array, bandwidth_gb_s: float
) -> Array:
    """Return what the kernels between modules take in one step.

    Parameters
    ----------
    layers
        Layers of two pieces each, attention and an FFN.
    tokens
        Rows of a rank, b N, of any shape; that of the result.
    bandwidth_gb_s
        beta of the GPU.
    """
    moved_us = LAYER_KERNELS * _BYTES * d_model * tokens / (bandwidth_gb_s * 1e3)
    return np.asarray(layers * (constants.layer_us + moved_us))


def host_us(constants: StepConstants, *, batch: int) -> float:
    """Return what the host takes for a step of so many requests."""
    return constants.step_us + constants.request_us * batch


def hidden_us(
    engine: Engine, release: BackendRelease, tokens: Array, shared: Array, routed: Array
) -> Array:
    """Return how much of the shared experts' time runs beside the router and the routed experts.

    Parameters
    ----------
    tokens
        Rows that the layer sees, b N, [grid].
    shared, routed
        What both take by themselves, [grid].
    """
    if not reached(release.version, engine.beside.first):
        return np.zeros_like(shared)
    within = np.ones_like(tokens, dtype=bool)
    if engine.beside.most_tokens is not None:
        within = tokens <= engine.beside.most_tokens
    return np.where(within, np.minimum(shared, routed), 0.0)


def reached(version: str | None, first: str) -> bool:
    """Return whether a release is one from another on; without a number it is the newest."""
    try:
        return version is None or Version(version) >= Version(first)
    except InvalidVersion:
        return True
