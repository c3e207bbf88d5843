"""BLOOM and MPT: published sizes, the kernels that take their bias, and what is refused."""

from pathlib import Path
from typing import Any

import pytest
from nearfree.backends.names import BackendRelease
from nearfree.decoders.attention_kinds import Grouped
from nearfree.decoders.config_file import read_decoder
from nearfree.decoders.ranks.attention_uses import OUTPUT, QKV
from nearfree.decoders.ranks.caveats import caveats
from nearfree.decoders.ranks.modules import DENSE
from nearfree.decoders.weights import stored
from nearfree.derive.predict.forecast.attention_choice import (
    attention_candidates,
    attention_refusals,
)
from nearfree.errors import RefusedError

from decoders.files import modules_by_role, parameters, read, write

_MPT: dict[str, Any] = {
    "d_model": 4096, "n_heads": 32, "n_layers": 32, "expansion_ratio": 4, "vocab_size": 50432,
    "no_bias": True, "norm_type": "low_precision_layernorm",
    "attn_config": {"alibi": True, "alibi_bias_max": 8, "prefix_lm": False, "qk_ln": False},
}  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "sizes", "published"),
    [
        ("bloom", {"hidden_size": 1024, "n_layer": 24, "n_head": 16}, 559_214_592),
        ("bloom", {"hidden_size": 2560, "n_layer": 30, "n_head": 32}, 3_002_557_440),
        ("bloom", {"hidden_size": 4096, "n_layer": 30, "num_attention_heads": 32}, 7_069_016_064),
        ("bloom", {"n_embed": 14336, "n_layer": 70, "num_attention_heads": 112}, 176_247_271_424),
        ("mpt", _MPT, 6_649_286_656),
    ],
)
def test_sizes_are_the_published_ones(
    tmp_path: Path, kind: str, sizes: dict[str, Any], published: int
) -> None:
    """BLOOM's are those of its model cards.

    The 6.7 billion of MPT-7B are published without their last digits, which are counted.
    """
    document = {"model_type": kind, "torch_dtype": "bfloat16", "vocab_size": 250880, **sizes}
    path = write(tmp_path, document)
    assert parameters(stored(path)) == published
    decoder = read_decoder(path)
    assert decoder.kv_heads == decoder.heads
    assert decoder.gated is False


def test_modules_are_those_of_the_class(tmp_path: Path) -> None:
    """One product makes query, key and value; the FFN is four times as wide as the model."""
    for kind in ("bloom", "mpt"):
        uses = modules_by_role(read(tmp_path, kind))
        sizes = {role: (use.setting.d_model, use.setting.d_ff) for role, use in uses.items()}
        assert (sizes[QKV], sizes[OUTPUT], sizes[DENSE]) == ((64, 192), (64, 64), (64, 256))


@pytest.mark.parametrize("sm", [80, 90, 100, 120])
def test_flash_attention_2_runs_it_everywhere(tmp_path: Path, sm: int) -> None:
    """No other version has the bias, so that an engine falls back to it on newer devices."""
    decoder = read(tmp_path, "bloom")
    assert all(isinstance(kind, Grouped) and kind.alibi for kind in decoder.attention)
    engine = BackendRelease("vllm", "0.33.0")
    assert next(attention_candidates(decoder, None, sm, engine)) == "flash-attn"
    assert any("ALiBi" in sentence for sentence in caveats(decoder))
    (refusal,) = attention_refusals(decoder, BackendRelease("vllm_fa3", "0.33.0"), 90)
    assert "logits are biased by distance (ALiBi)" in str(refusal)
    assert "--attention flash-attn" in refusal.remedy


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"attn_config": {"alibi": False}}, "alibi False is off"),
        ({"attn_config": {"qk_ln": True}}, "qk_ln True is set"),
        ({"attn_config": {"prefix_lm": True}}, "prefix_lm True is set"),
        ({"attn_config": {"kv_n_heads": 2}}, "kv_n_heads 2 is not n_heads 8"),
        ({"norm_type": "rmsnorm"}, "norm_type 'rmsnorm' is not low_precision_layernorm"),
    ],
)
def test_what_mpt_s_class_does_not_run_is_refused(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    """What engines assert of MPT, or run otherwise, is refused by its key."""
    with pytest.raises(RefusedError, match=message):
        read(tmp_path, "mpt", **changes)


def test_biases_of_mpt_are_counted_where_its_file_has_them(tmp_path: Path) -> None:
    """Products and norms have them unless the file says otherwise."""
    plain = parameters(stored(write(tmp_path, {**_MPT, "model_type": "mpt"})))
    document = {**_MPT, "model_type": "mpt", "no_bias": False}
    biased = parameters(stored(write(tmp_path, document)))
    assert biased - plain == 32 * (3 + 1 + 4 + 1 + 2) * 4096 + 4096
