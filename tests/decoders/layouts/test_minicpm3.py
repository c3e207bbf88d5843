"""MiniCPM3: its published size, what is expanded and cached, its shards, and refusals."""

from pathlib import Path
from typing import Any

import pytest
from nearfree.backends.names import BackendRelease
from nearfree.core.parallel import Parallel
from nearfree.decoders.config_file import read_decoder
from nearfree.decoders.ranks.attention_uses import ATTENTION, EXPANSION, LATENTS, OUTPUT, QUERY
from nearfree.decoders.ranks.caveats import caveats
from nearfree.decoders.weights import stored
from nearfree.derive.predict.forecast.attention_choice import verification_refusals
from nearfree.errors import RefusedError

from decoders.files import modules_by_role, parameters, read, write

_4B = {
    "model_type": "minicpm3", "torch_dtype": "bfloat16", "vocab_size": 73448, "hidden_size": 2560,
    "intermediate_size": 6400, "num_hidden_layers": 62, "num_attention_heads": 40,
    "num_key_value_heads": 40, "q_lora_rank": 768, "kv_lora_rank": 256, "qk_nope_head_dim": 64,
    "qk_rope_head_dim": 32, "v_head_dim": 64,
}  # fmt: skip


def test_the_size_and_the_cache_are_the_published_ones(tmp_path: Path) -> None:
    """MiniCPM3-4B has 4 billion parameters, and caches 40 keys and values of 96 elements.

    The digits of the 4.07 billion are counted; transformers' class has as many.
    """
    contents = stored(write(tmp_path, _4B))
    assert round(parameters(contents) / 1e9, 2) == 4.07
    assert [(cache.layers, cache.elements) for cache in contents.cache] == [(62, 2 * 40 * 96)]


def test_products_are_those_of_the_class(tmp_path: Path) -> None:
    """Latents of 768 and 256 elements and a shared key part; values are padded for attention."""
    uses = modules_by_role(read_decoder(write(tmp_path, _4B)))
    sizes = {role: (use.setting.d_model, use.setting.d_ff) for role, use in uses.items()}
    assert sizes[LATENTS] == (2560, 768 + 256 + 32)
    assert sizes[QUERY] == (768, 40 * 96)
    assert sizes[EXPANSION] == (256, 40 * (64 + 64))
    assert sizes[OUTPUT] == (40 * 64, 2560)
    attention = uses[ATTENTION].setting
    assert (attention.heads, attention.kv_heads, attention.head_dim) == (40, 40, 96)


def test_ranks_have_their_heads_and_whole_latents(tmp_path: Path) -> None:
    """What heads have is cut, and what makes latents is not."""
    uses = modules_by_role(read(tmp_path, "minicpm3"), parallel=Parallel(tp=2))
    sizes = {role: (use.setting.d_model, use.setting.d_ff) for role, use in uses.items()}
    assert sizes[LATENTS] == (64, 20 + 12 + 4)
    assert sizes[EXPANSION] == (12, 4 * (6 + 8))
    assert sizes[OUTPUT] == (4 * 8, 64)


def test_engines_that_cache_latents_are_refused(tmp_path: Path) -> None:
    """It is read as vLLM runs it; SGLang absorbs its latents."""
    decoder = read(tmp_path, "minicpm3")
    assert list(verification_refusals(decoder, BackendRelease("vllm", "0.33.0"))) == []
    (refusal,) = verification_refusals(decoder, BackendRelease("sglang", "0.5.23"))
    assert "sglang caches the latents of this model" in refusal.reason
    assert any("timed as one product" in sentence for sentence in caveats(decoder))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"attention_bias": True}, "attention_bias True is set"),
        ({"mlp_bias": True}, "mlp_bias True is set"),
        ({"v_head_dim": 12}, "v_head_dim 12 is more than 10, the width of a key"),
        ({"num_key_value_heads": 2}, "num_key_value_heads 2 is not 8"),
        ({"q_lora_rank": None}, "q_lora_rank is missing"),
    ],
)
def test_what_engines_do_not_run_is_refused(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    """What its class could, and engines do not read, is refused by its key."""
    with pytest.raises(RefusedError, match=message):
        read(tmp_path, "minicpm3", **changes)
