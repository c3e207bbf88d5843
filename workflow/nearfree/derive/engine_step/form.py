"""Time of an engine's step outside of its modules: kernels between modules, and the host.

T_step(N) = sum of modules - overlapped time + layers (layer_us + K 4 b N d_model / beta)
+ sums sum_wait_us + step_us + b request_us, with K kernels per layer that read and write every
token's row: two norms with their residual sums, the rotary embedding, the write to the cache, and
the activation or the router's choice of experts. `sums` are the all-reduces of a forward: public
tables time them with ranks that start together, those of a step do not. Each engine has its own
constants, fitted to published steps of whole models.
"""

import numpy as np
from msgspec import Struct

from nearfree.backends.names import BackendRelease, is_since
from nearfree.decoders.ranks.engines import Engine
from nearfree.derive.work_model.family import Array, Constant

LAYER_KERNELS = 5
"""Kernels per layer, between its modules, that read and write all rows."""
_SHORTEST_US = 1.5
"""The shortest kernel: the least of 1.48 to 2.45 us that any product takes in the public tables of
nine GPUs (AIConfigurator 0.12.0)."""
_BYTES = 4.0
"""Bytes moved per 16-bit element: it is read once and written once."""
CONSTANTS = (
    Constant(name="layer_us", unit="us", start=10.0, low=LAYER_KERNELS * _SHORTEST_US, high=200.0,
             meaning="what the kernels between a layer's modules take, however few rows"),
    Constant(name="sum_wait_us", unit="us", start=1.0, low=0.0, high=50.0,
             meaning="what ranks wait for each other at an all-reduce, besides its own time"),
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
    sum_wait_us: float = 0.0

    def fixed_us(self, *, layers: float, sums: int) -> float:
        """Return the time between the modules of a forward of no rows, in microseconds."""
        return layers * self.layer_us + sums * self.sum_wait_us


def between_us(
    constants: StepConstants,
    *,
    layers: float,
    sums: int,
    d_model: int,
    tokens: Array,
    bandwidth_gb_s: float,
) -> Array:
    """Return the time of the kernels between modules in one step, in microseconds.

    Parameters
    ----------
    layers
        Layers, each of an attention and an FFN.
    sums
        All-reduces of a forward.
    tokens
        Rows of a rank, b N; the result has the same shape.
    bandwidth_gb_s
        beta of the GPU.
    """
    moved_us = LAYER_KERNELS * _BYTES * d_model * tokens / (bandwidth_gb_s * 1e3)
    return np.asarray(constants.fixed_us(layers=layers, sums=sums) + layers * moved_us)


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
