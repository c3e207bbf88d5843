"""The mixing of residual streams: its work is that of transformers' class, counted separately."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs
from nearfree.core.modules.stream_mixing import mixing_weights, mixing_work
from nearfree.core.setting import Setting

V4 = Setting(module="stream_mixing", backend="vllm", dtype="bfloat16", batch=3, d_model=7168,
             streams=4)  # fmt: skip


@pytest.mark.slow
def test_weights_are_those_of_transformers_class() -> None:
    """Weights before, after and between streams are one product, as in transformers' class."""
    from transformers.models.deepseek_v4.configuration_deepseek_v4 import DeepseekV4Config
    from transformers.models.deepseek_v4.modeling_deepseek_v4 import DeepseekV4HyperConnection

    config = DeepseekV4Config(hidden_size=48, hc_mult=3)
    with torch.device("meta"):
        (matrix, *_) = DeepseekV4HyperConnection(config).parameters()
    assert matrix.numel() == mixing_weights(48, 3)


@given(st.integers(1, 64), st.integers(1, 16), st.integers(1, 8))
def test_a_position_moves_its_streams_three_times(n: int, batch: int, streams: int) -> None:
    """Streams are read before, read and written after, with the block's input and output."""
    setting = structs.replace(V4, batch=batch, streams=streams)
    fewer, more_work = (mixing_work(setting, positions, "") for positions in (n, n + 1))
    assert (
        more_work.bytes_compulsory - fewer.bytes_compulsory == batch * (3 * streams + 2) * 7168 * 2
    )
    assert fewer.bytes_compulsory - batch * n * (3 * streams + 2) * 7168 * 2 == 4 * mixing_weights(
        7168, streams
    )
    assert more_work.flop_logical * n == fewer.flop_logical * (n + 1)
