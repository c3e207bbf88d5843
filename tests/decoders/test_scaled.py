"""Scaled models: each `*_cpu.json` is its original, narrower and with fewer layers."""

import json
from pathlib import Path
from typing import Any

import pytest
from nearfree.decoders.config_file import read_decoder
from nearfree.decoders.decoder import Decoder
from nearfree.decoders.details import read_details

from decoders.files import ALL_MODELS

SCALED = [path for path in ALL_MODELS if path.stem.endswith("_cpu")]
NARROWER = (
    "hidden_size", "num_attention_heads", "num_key_value_heads", "intermediate_size",
    "moe_intermediate_size", "num_experts", "num_experts_per_tok", "n_routed_experts",
    "num_local_experts", "experts_per_token",
)  # fmt: skip
FEWER = ("num_hidden_layers", "max_window_layers", "layer_types")
by_model = pytest.mark.parametrize("path", SCALED, ids=lambda path: path.stem)


def original(path: Path) -> Path:
    """Return the file of the model that one is scaled from."""
    return path.with_stem(path.stem.removesuffix("_cpu"))


def scaled_and_original(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a scaled file and its original."""
    small, large = (json.loads(file.read_text()) for file in (path, original(path)))
    return small, large


def factor(path: Path) -> int:
    """Return what widths are divided by."""
    small, large = scaled_and_original(path)
    return int(large["hidden_size"] // small["hidden_size"])


def attention_width(decoder: Decoder) -> int:
    """Return the outputs of query, key and value, and the inputs of the output, of all layers."""
    return 2 * decoder.layers * (decoder.heads + decoder.kv_heads) * decoder.head_dim


def test_there_are_scaled_models_of_both_kinds() -> None:
    """Dense models and models with experts are scaled, each from a file that is there."""
    assert {read_decoder(path).experts is None for path in SCALED} == {True, False}
    assert all(original(path) in ALL_MODELS for path in SCALED)


@by_model
def test_all_else_is_the_original(path: Path) -> None:
    """What is neither a width, a count of layers nor the vocabulary is as published.

    Weights of scaled models are not quantised.
    """
    small, large = scaled_and_original(path)
    large.pop("quantization_config", None)
    assert set(small) - {"torch_dtype"} == set(large) - {"torch_dtype"}
    changed = {key for key in small if key in large and small[key] != large[key]}
    assert changed <= {*NARROWER, *FEWER, "vocab_size"}
    assert {"hidden_size", "num_hidden_layers", "vocab_size"} <= changed


@by_model
def test_widths_are_divided_by_one_factor(path: Path) -> None:
    """Widths, heads, experts and k are divided by one factor, so that their ratios stay."""
    small, large = scaled_and_original(path)
    present = [key for key in NARROWER if key in large]
    assert factor(path) > 1
    assert {key: small[key] * factor(path) for key in present} == {
        key: large[key] for key in present
    }


@by_model
def test_heads_and_groups_stay(path: Path) -> None:
    """A head is as wide as the original's, and experts are in as many groups."""
    small, large = (read_decoder(file) for file in (path, original(path)))
    assert small.head_dim == large.head_dim
    scaled_details, original_details = (read_details(file) for file in (path, original(path)))
    assert scaled_details.router == original_details.router
    assert (
        scaled_details.rope,
        scaled_details.form,
        scaled_details.qk_norm,
        scaled_details.tied,
    ) == (
        original_details.rope,
        original_details.form,
        original_details.qk_norm,
        original_details.tied,
    )


@by_model
def test_the_first_dense_layer_stays(path: Path) -> None:
    """As many first layers as the original's are dense, all of them where it has no experts."""
    small, large = (read_decoder(file) for file in (path, original(path)))
    assert 0 < small.layers < large.layers
    if large.experts is None:
        assert small.dense_layers == small.layers
    else:
        assert small.dense_layers == large.dense_layers
        assert read_details(path).moe_at[0] == read_details(original(path)).moe_at[0]


@by_model
def test_the_vocabulary_is_divided_by_both(path: Path) -> None:
    """The LM head keeps its ratio to attention, and its share of all weights without experts.

    Experts shrink by their number too, so the head's share of a model that has some grows.
    """
    small, large = (read_decoder(file) for file in (path, original(path)))
    by_both = large.vocabulary / factor(path) * small.layers / large.layers
    assert small.vocabulary == pytest.approx(by_both, rel=0.01)
    scaled_ratio, original_ratio = (
        decoder.vocabulary / attention_width(decoder) for decoder in (small, large)
    )
    assert scaled_ratio == pytest.approx(original_ratio, rel=0.15)
    if small.experts is None:
        shares = [
            decoder.vocabulary
            / (attention_width(decoder) + decoder.layers * 3 * (decoder.d_ff or 0))
            for decoder in (small, large)
        ]
        assert shares[0] == pytest.approx(shares[1], rel=0.15)
