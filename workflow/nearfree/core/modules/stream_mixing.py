"""The mixing of residual streams before and after a block of a layer (hyper connections).

A position has m streams of d elements each. Before attention and before the FFN, a product of all
streams with a float32 matrix [m d, (2 + m) m] gives the mixing weights. With these the streams are
merged into the block's input, and afterwards the block's output and the m streams give m streams.
Source: transformers 5.23, models/deepseek_v4/modeling_deepseek_v4.py:887-999
(DeepseekV4HyperConnection).
"""

from nearfree.core.modules.kind import ModuleKind
from nearfree.core.setting import Setting
from nearfree.core.work import ExecutedWork, element_bytes, unpadded_work

WEIGHT_BYTES = 4
"""Bytes per element of the matrix: float32."""


def mixing_weights(d_model: int, streams: int) -> int:
    """Return the number of elements of the matrix that gives the mixing weights: (2 + m) m m d."""
    return (2 + streams) * streams * streams * d_model


def mixed_elements(d_model: int, streams: int) -> int:
    """Return the number of elements that a position reads and writes in both calls: (3 m + 2) d.

    First m streams are read and one input is written; then the output and m streams are read and m
    streams are written.
    """
    return (3 * streams + 2) * d_model


def mixing_work(setting: Setting, n: int, basis: str) -> ExecutedWork:
    """Return the work of N new positions of each request before and after one block."""
    d_model, streams, tokens = setting.d_model or 0, setting.streams or 0, setting.batch * n
    weights = mixing_weights(d_model, streams)
    flop = int(2 * tokens * (weights + (2 + streams) * streams * d_model))
    moved = tokens * mixed_elements(d_model, streams) * element_bytes(setting)
    return unpadded_work(flop, int(moved + weights * WEIGHT_BYTES), basis)


STREAM_MIXING = ModuleKind(
    name="stream_mixing",
    title="mixing of streams",
    several="mixed residual streams",
    own="streams",
    work=mixing_work,
    knobs=(
        "batch (b N positions read and write their residual streams)",
        "engine and its version (how many calls mix them)",
    ),
)
"""The paper has no law for it: its models have one stream."""
