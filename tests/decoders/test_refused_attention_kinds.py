"""Kinds of attention that are refused, each by its reason, and those with a caveat."""

import re
from pathlib import Path
from typing import Any

import pytest
from nearfree.decoders.ranks.caveats import caveats
from nearfree.errors import RefusedError

from decoders.files import read


@pytest.mark.parametrize(
    ("kind", "changes", "message"),
    [
        ("laguna", {"gating": "some"}, "gating 'some' is none of"),
        ("laguna", {"gating": 1}, "gating 1 is none of"),
        ("laguna", {"gating": None}, "gating None is none of"),
        ("laguna", {"gating": ["x"]}, "gating [...] is none of"),
        ("laguna", {"num_attention_heads_per_layer": [8] * 5}, "has 5 entries for 6 layers"),
        ("laguna", {"num_attention_heads_per_layer": []}, "has 0 entries for 6 layers"),
        ("laguna", {"num_attention_heads_per_layer": [0, *[8] * 5]}, "has layers without heads"),
        ("laguna", {"mlp_layer_types": ...}, "mlp_layer_types is missing"),
        ("exaone_moe", {"sliding_window": None}, "sliding_window is missing"),
        ("exaone_moe", {"sliding_windows": [32] * 6}, "sliding_windows [...] gives layers"),
        ("hy_v3", {"qk_norm": False}, "qk_norm False is one that engines disagree on"),
        ("hy_v3", {"qk_norm": ...}, "qk_norm or use_qk_norm is missing"),
        ("hy_v3", {"expert_hidden_dim": 25}, "expert_hidden_dim 25 differs"),
        ("afmoe", {"num_dense_layers": ...}, "num_dense_layers is missing"),
    ],
)
def test_a_key_that_engines_read_differently_is_refused(
    tmp_path: Path, kind: str, changes: dict[str, Any], message: str
) -> None:
    """A key that engines read in two ways, or that one alone reads, is refused by its name."""
    with pytest.raises(RefusedError, match=re.escape(message)):
        read(tmp_path, kind, **changes)


@pytest.mark.parametrize(
    ("kind", "changes", "reasons"),
    [
        (
            "gpt_oss",
            {"layer_types": ["mamba", "full_attention", "conv"] + ["full_attention"] * 3},
            ["has kinds that are not read: 'mamba' of layer 0, 'conv' of layer 2"],
        ),
        ("gpt_oss", {"layer_types": ["full_attention"] * 7}, ["has 7 entries for 6 layers"]),
        (
            "llama4_text",
            {"layer_types": ["chunked_attention"] * 6, "no_rope_layers": [1, 1, 1, 0, 1, 1]},
            ["says 'chunked_attention' of layer 3, and no_rope_layers says 'full_attention'"],
        ),
        (
            "llama4_text", {"moe_layers": [0, 3, 5]},
            ["moe_layers [...] contradicts interleave_moe_layer_step at layer 0"],
        ),
        (
            "glm_moe_dsa", {"mlp_layer_types": ["dense"] * 2 + ["sparse"] * 4},
            ["mlp_layer_types [...] contradicts first_k_dense_replace at layer 1"],
        ),
        (
            "deepseek_v32",
            {"kv_lora_rank": ..., "q_lora_rank": ..., "index_topk": ..., "qk_rope_head_dim": "x"},
            ["kv_lora_rank is missing", "q_lora_rank is missing", "index_topk is missing",
             "qk_rope_head_dim 'x' is no whole number"],
        ),
        (
            "gemma2", {"sliding_window": ..., "num_key_value_heads": 3, "vocab_size": ...},
            ["sliding_window is missing", "num_key_value_heads 3 does not divide",
             "vocab_size is missing"],
        ),
    ],
)  # fmt: skip
def test_all_reasons_are_reported_at_once(
    tmp_path: Path, kind: str, changes: dict[str, Any], reasons: list[str]
) -> None:
    """Unknown kinds are named with their layers, contradictions with both keys, all together."""
    with pytest.raises(RefusedError) as error:
        read(tmp_path, kind, **changes)
    for reason in reasons:
        assert reason in error.value.what
    assert len(error.value.refusals) == len(reasons)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"compress_ratios": [0, 4, 8, 4, 16, 0]}, "'8' of layer 2, '16' of layer 4"),
        ({"compress_ratios": [0, 4]}, "compress_ratios .* has 2 entries for 6 layers"),
        ({"num_key_value_heads": 2}, "num_key_value_heads 2 is not 1"),
        ({"index_topk": ...}, "index_topk is missing"),
        ({"hc_mult": ...}, "hc_mult is missing"),
    ],
)
def test_entries_that_contradict_are_refused(
    tmp_path: Path, changes: dict[str, Any], reason: str
) -> None:
    """A ratio that no kind has is named with its layers, a missing or second key by its name."""
    with pytest.raises(RefusedError, match=reason):
        read(tmp_path, "deepseek_v4", **changes)


def test_heads_wider_than_256_elements_on_hopper_have_a_caveat(tmp_path: Path) -> None:
    """It is no kernel whose tile is read, and narrower heads need none such."""
    (caveat,) = caveats(read(tmp_path, "gemma4_text", global_head_dim=512))
    assert "on Hopper vLLM runs heads of 512 elements from 0.24.0 on by FlashAttention 4" in caveat
    assert caveats(read(tmp_path, "gemma4_text", global_head_dim=256)) == ()


@pytest.mark.parametrize(("key", "value"), [("num_attention_groups", 4), ("head_dim", 32)])
def test_keys_of_step_3_are_alike_in_all_layers(tmp_path: Path, key: str, value: int) -> None:
    """Engines disagree on keys of layers with a window that differ: a file that has them is none.

    Without them, and where they are those of other layers, it is read.
    """
    settings_of_all = {"num_attention_heads": 12, "num_attention_groups": 2, "head_dim": 16}
    removed: dict[str, Any] = {"num_sliding_attention_heads": ...}
    for window_setting in ({"num_attention_heads": 12}, settings_of_all):
        decoder = read(tmp_path, "step3p5", attention_other_setting=window_setting, **removed)
        assert {(kind.heads, kind.window) for kind in decoder.attention} == {(8, None), (12, 32)}
    setting = {**settings_of_all, key: value}
    for options in (removed, {}):
        with pytest.raises(RefusedError, match=f"attention_other_setting.{key} {value} is not"):
            read(tmp_path, "step3p5", attention_other_setting=setting, **options)


def test_a_chunk_counts_as_filled_with_a_caveat(tmp_path: Path) -> None:
    """Layers in chunks see fewer positions at most places of a context: a caveat says so."""
    (caveat,) = caveats(read(tmp_path, "llama4_text", attention_chunk_size=256))
    assert caveat.startswith("5 of 6 layers are timed as if a request had filled its chunk of 256")


def test_an_approximation_has_a_caveat(tmp_path: Path) -> None:
    """Positions as requests and layers without entries each are a caveat, once."""
    row_caveat, window_caveat = caveats(read(tmp_path, "deepseek_v4"))
    assert "as one position of as many requests" in row_caveat
    assert window_caveat.startswith("2 of 6 layers (window 32 alone) are timed as layers")
    with_entries = read(tmp_path, "deepseek_v4", compress_ratios=[4, 4, 128, 4, 128, 4])
    assert caveats(with_entries) == (row_caveat,)
    assert caveats(read(tmp_path, "deepseek_v3")) == ()
    assert any("two, each" in caveat for caveat in caveats(read(tmp_path, "olmo_hybrid")))
    assert not any("two, each" in caveat for caveat in caveats(read(tmp_path, "qwen3_next")))


@pytest.mark.parametrize(
    ("kind", "changes", "message"),
    [
        ("dots1", {"sliding_window": 32, "max_window_layers": 5}, "max_window_layers 5 leaves a"),
        ("solar_open", {"first_k_dense_replace": 1}, "first_k_dense_replace 1 is not 0"),
        ("granite_swa", {"attention_sinks": False}, "attention_sinks False leaves out sinks"),
    ],
)
def test_a_key_that_classes_and_engines_read_differently_is_refused(
    tmp_path: Path, kind: str, changes: dict[str, Any], message: str
) -> None:
    """A key that engines disagree on, or that the class does not have, is refused by its name."""
    with pytest.raises(RefusedError, match=message):
        read(tmp_path, kind, **changes)


def test_parallel_attention_and_ffn_have_a_caveat(tmp_path: Path) -> None:
    """Command A+ has attention and FFN on two streams, which no time of either says."""
    matching = [
        caveat for caveat in caveats(read(tmp_path, "cohere2_moe")) if "in parallel" in caveat
    ]
    assert len(matching) == 1
    assert not any("in parallel" in caveat for caveat in caveats(read(tmp_path, "cohere2")))
