"""The short convolution: its work is that of transformers' class, counted separately."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs
from nearfree.core.modules.short_conv import short_conv_work
from nearfree.core.setting import Setting

LFM2 = Setting(module="short_conv", backend="vllm", dtype="bfloat16", batch=3, d_model=2048,
               conv=3)  # fmt: skip


@given(st.integers(1, 64), st.integers(1, 16), st.integers(1, 8))
def test_a_further_position_moves_three_rows(n: int, batch: int, conv: int) -> None:
    """A row enters, a row leaves and a row is stored; the cache and the weights are read once."""
    setting = structs.replace(LFM2, batch=batch, conv=conv)
    fewer, more_work = (short_conv_work(setting, positions, "") for positions in (n, n + 1))
    assert more_work.bytes_compulsory - fewer.bytes_compulsory == batch * 3 * 2048 * 2
    first_bytes = short_conv_work(setting, 1, "").bytes_compulsory
    assert first_bytes == 2048 * 2 * (batch * (2 * (conv - 1) + 2) + conv)
    assert more_work.flop_logical * n == fewer.flop_logical * (n + 1)


@pytest.mark.slow
def test_weights_and_cache_are_those_of_transformers_class() -> None:
    """Each channel has one weight for each position of the kernel, and caches all but one."""
    from transformers.models.lfm2.configuration_lfm2 import Lfm2Config
    from transformers.models.lfm2.modeling_lfm2 import Lfm2ShortConv

    with torch.device("meta"):
        layer = Lfm2ShortConv(Lfm2Config(hidden_size=48, conv_L_cache=5), 0)
    assert layer.conv.weight.numel() == 48 * 5
    setting = structs.replace(LFM2, batch=1, d_model=48, conv=5)
    assert short_conv_work(setting, 1, "").flop_logical == 2 * layer.conv.weight.numel()
