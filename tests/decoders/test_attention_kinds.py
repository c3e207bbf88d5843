"""The kinds of attention of a file's layers."""

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from nearfree.decoders.attention_kinds import Compressed, Grouped, Kind, Latent
from nearfree.decoders.config_file import read_decoder
from nearfree.decoders.ranks.caveats import caveats
from nearfree.decoders.state_kinds import DeltaNet
from nearfree.decoders.weights import stored
from nearfree.errors import RefusedError

from decoders.files import SHIPPED, SMALL, change, read, refusal, write

LATENT: dict[str, Any] = {
    "heads": 8, "latent": 12, "rope_dim": 4, "nope_dim": 6, "value_dim": 10,
}  # fmt: skip
GROUPED: dict[str, Any] = {"heads": 8, "kv_heads": 2, "head_dim": 16}
ALL = tuple(range(6))
COMPRESSED: dict[str, Any] = {
    "heads": 8, "width": 128, "query_rank": 20, "groups": 2, "output_rank": 12, "window": 32,
}  # fmt: skip
STATES: dict[str, Any] = {
    "heads": 4, "key_heads": 2, "key_dim": 8, "value_dim": 16, "conv": 4,
}  # fmt: skip
EVEN, ODD = (0, 2, 4), (1, 3, 5)


@pytest.mark.parametrize(
    ("kind", "kinds"),
    [
        ("llama", [Grouped(layers=ALL, heads=8, kv_heads=2, head_dim=8)]),
        ("deepseek_v2", [Latent(layers=ALL, **LATENT)]),
        ("glm4_moe_lite", [Latent(layers=ALL, **LATENT)]),
        (
            "deepseek_v32",
            [Latent(layers=ALL, query_rank=20, selected=32, index_heads=3, index_dim=14, **LATENT)],
        ),
        (
            "gemma2",
            [
                Grouped(layers=EVEN, window=32, soft_cap=50.0, **GROUPED),
                Grouped(layers=ODD, soft_cap=50.0, **GROUPED),
            ],
        ),
        (
            "gemma3_text",
            [Grouped(layers=ALL[:5], window=32, **GROUPED), Grouped(layers=(5,), **GROUPED)],
        ),
        (
            "gemma4_text",
            [
                Grouped(layers=EVEN, window=32, **GROUPED),
                Grouped(layers=ODD, **GROUPED | {"head_dim": 32}),
            ],
        ),
        (
            "gpt_oss",
            [
                Grouped(layers=EVEN, window=32, sinks=True, **GROUPED),
                Grouped(layers=ODD, sinks=True, **GROUPED),
            ],
        ),
        (
            "deepseek_v4",
            [
                Compressed(layers=(0, 5), **COMPRESSED),
                Compressed(
                    layers=(1, 3), span=4, selected=32, index_heads=3, index_dim=16, **COMPRESSED
                ),
                Compressed(layers=(2, 4), span=128, **COMPRESSED),
            ],
        ),
        (
            "qwen3_5_text",
            [
                DeltaNet(layers=(0, 1, 3, 4), state="float32", **STATES),
                Grouped(layers=(2, 5), gate=True, **GROUPED),
            ],
        ),
        (
            "qwen3_next",
            [
                DeltaNet(layers=(0, 1, 3, 4), **STATES),
                Grouped(layers=(2, 5), gate=True, **GROUPED),
            ],
        ),
        (
            "llama4_text",
            [
                Grouped(layers=(0, 1, 2, 4, 5), chunk=8192, **GROUPED),
                Grouped(layers=(3,), **GROUPED),
            ],
        ),
        (
            "kimi_linear",
            [
                DeltaNet(
                    layers=(0, 1, 3, 4), heads=4, key_heads=4, key_dim=6, value_dim=6, conv=4,
                    state="float32", rank=6,
                ),
                Latent(layers=(2, 5), **LATENT),
            ],
        ),
        (
            "mimo_v2_flash",
            [
                Grouped(layers=(0, 5), value_dim=12, **GROUPED),
                Grouped(
                    layers=(1, 2, 3, 4), value_dim=12, window=32, sinks=True,
                    **GROUPED | {"kv_heads": 4},
                ),
            ],
        ),
        (
            "step3p5",
            [
                Grouped(layers=(0, 3), head_gates=True, **GROUPED),
                Grouped(
                    layers=(1, 2, 4, 5), head_gates=True, window=32, **GROUPED | {"heads": 12}
                ),
            ],
        ),
        (
            "afmoe",
            [
                Grouped(layers=(0, 1, 3, 4), wide_gates=True, window=32, **GROUPED),
                Grouped(layers=(2, 5), wide_gates=True, **GROUPED),
            ],
        ),
        (
            "exaone_moe",
            [
                Grouped(layers=(0, 1, 3, 4), window=32, **GROUPED | {"head_dim": 8}),
                Grouped(layers=(2, 5), **GROUPED | {"head_dim": 8}),
            ],
        ),
        ("hy_v3", [Grouped(layers=ALL, **GROUPED)]),
        (
            "laguna",
            [
                Grouped(layers=(0, 3), head_gates=True, **GROUPED),
                Grouped(
                    layers=(1, 2, 4, 5), head_gates=True, window=32, **GROUPED | {"heads": 16}
                ),
            ],
        ),
    ],
)  # fmt: skip
def test_each_family_has_its_kinds(tmp_path: Path, kind: str, kinds: list[Kind]) -> None:
    """Layers are of the kinds that the model type's class makes of its file."""
    assert list(read(tmp_path, kind).attention) == kinds


@pytest.mark.parametrize(
    "kind", [kind for kind in SMALL if kind not in ("falcon_h1", "nemotron_h", "nemotron-nas")]
)
def test_each_layer_is_of_one_kind(tmp_path: Path, kind: str) -> None:
    """The kinds of a decoder part its layers; one of LongCat-Flash is of its one kind twice."""
    decoder, times = read(tmp_path, kind), 1 + (kind == "longcat_flash")
    layers = [layer for kind_ in decoder.attention for layer in kind_.layers]
    assert sorted(layers) == sorted([*range(decoder.layers)] * times)


@pytest.mark.parametrize(
    ("gating", "heads", "elements"),
    [
        (True, True, False), (None, True, False), ("per-head", True, False),
        ("per-element", False, True), (False, False, False),
    ],
)  # fmt: skip
def test_gates_of_laguna_are_as_wide_as_its_file_says(
    tmp_path: Path, gating: object, *, heads: bool, elements: bool
) -> None:
    """Without the key, and with true, each head has one."""
    changes = {} if gating is None else {"gating": gating}
    for kind_ in read(tmp_path, "laguna", **changes).attention:
        assert isinstance(kind_, Grouped)
        assert (kind_.head_gates, kind_.wide_gates) == (heads, elements)


def test_sinks_of_laguna_are_of_layers_with_a_window(tmp_path: Path) -> None:
    """Where a file has them; heads are those of all layers where it has no list of them."""
    changes = {"swa_attention_sink_enabled": True, "num_attention_heads_per_layer": ...}
    full_layers, window_layers = read(tmp_path, "laguna", **changes).attention
    assert isinstance(full_layers, Grouped)
    assert isinstance(window_layers, Grouped)
    assert (full_layers.window, full_layers.sinks, full_layers.heads) == (None, False, 8)
    assert (window_layers.window, window_layers.sinks, window_layers.heads) == (32, True, 8)


@pytest.mark.parametrize("window", [None, ..., 32])
@pytest.mark.parametrize("kind", SMALL)
def test_a_layer_that_is_named_windowed_is_read_with_a_window(
    tmp_path: Path, kind: str, window: int | None
) -> None:
    """No model type's file that names layers with a window is read, or counted, without one."""
    named = ["full_attention", "sliding_attention"] * 3
    path = write(tmp_path, change(kind, layer_types=named, sliding_window=window))
    error = refusal(lambda: read_decoder(path))
    if error is None:
        windows = {
            layer: getattr(attention, "window", None)
            for attention in read_decoder(path).attention
            for layer in attention.layers
        }
        assert all(windows[layer] for layer in (1, 3, 5))
        assert window == 32
    else:
        assert re.search(r"layer_types|layers_block_type|sliding_window", error.what)
        counted = refusal(lambda: stored(path)) is None
        assert not counted or all(layer.window == 32 for layer in stored(path).cache)


def test_layers_of_one_block_and_of_two_are_distinguished(tmp_path: Path) -> None:
    """Nemotron-H's layers are of one kind or an FFN alone, Falcon-H1's each of both kinds."""
    decoder = read(tmp_path, "nemotron_h")
    layers = [layer for kind in decoder.attention for layer in kind.layers]
    assert len({*layers}) == len(layers)
    assert len(layers) + decoder.dense_layers + decoder.moe_layers == decoder.layers
    falcon = read(tmp_path, "falcon_h1")
    all_layers = tuple(range(falcon.layers))
    assert [kind.layers for kind in falcon.attention] == [all_layers, all_layers]


def test_a_decoder_of_one_kind_is_written_as_before() -> None:
    """Records of models that were read before kinds existed do not name them."""
    today = {"deepseek_v2_lite", "gpt_oss_20b"}
    for path in SHIPPED:
        written = msgspec.to_builtins(read_decoder(path))
        assert ("kinds" in written) == (path.stem in today)


def test_keys_that_are_values_have_heads_of_their_own(tmp_path: Path) -> None:
    """Gemma 4's layers without a window share what keys and values are made by."""
    options = {"attention_k_eq_v": True, "num_global_key_value_heads": 1}
    window_layers, full_layers = read(tmp_path, "gemma4_text", **options).attention
    assert isinstance(window_layers, Grouped)
    assert isinstance(full_layers, Grouped)
    assert (window_layers.kv_heads, window_layers.keys_are_values) == (2, False)
    assert (full_layers.kv_heads, full_layers.keys_are_values) == (1, True)


def test_layers_that_share_a_cache_are_kinds_of_their_own(tmp_path: Path) -> None:
    """Gemma 4's last layers attend to what the last ones before them of their form have cached."""
    decoder = read(tmp_path, "gemma4_text", num_kv_shared_layers=3, hidden_size_per_layer_input=8)
    kinds = [(kind.layers, kind.shares, kind.words) for kind in decoder.attention
            if isinstance(kind, Grouped)]  # fmt: skip
    assert kinds == [
        ((0, 2), False, "window 32"),
        ((1,), False, "all positions"),
        ((3, 5), True, "all positions, shared cache"),
        ((4,), True, "window 32, shared cache"),
    ]
    assert decoder.layer_inputs == 8


def test_layers_without_an_indexer_take_an_earlier_choice(tmp_path: Path) -> None:
    """GLM's layers all select positions, with or without an indexer of their own."""
    types = ["full", "full", "shared", "full", "shared", "shared"]
    indexed, shared = read(tmp_path, "glm_moe_dsa", indexer_types=types).attention
    assert isinstance(indexed, Latent)
    assert isinstance(shared, Latent)
    assert (indexed.layers, indexed.index_heads) == ((0, 1, 3), 3)
    assert (shared.layers, shared.index_heads, shared.selected) == ((2, 4, 5), None, 32)


def test_layers_that_predict_further_may_be_listed(tmp_path: Path) -> None:
    """A list may go on with as many layers as the file says to predict further."""
    types = ["sliding_attention", "full_attention"] * 3
    options = {"layer_types": [*types, "full_attention"], "num_nextn_predict_layers": 1}
    assert read(tmp_path, "gpt_oss", **options) == read(tmp_path, "gpt_oss", layer_types=types)


def test_windows_are_given_by_a_number_or_by_letters(tmp_path: Path) -> None:
    """EXAONE 4's files say either, or the list of layers, which alone may lack a window.

    Letters that engines read differently are refused, and so is null without a list, by which the
    model's class fails.
    """
    local = {"layers": (0, 1, 3, 4), "window": 32}
    by_number = read(tmp_path, "exaone4", sliding_window_pattern=3).attention
    assert by_number == read(tmp_path, "exaone4", sliding_window_pattern="LLG").attention
    assert (by_number[0].layers, by_number[0].window) == (local["layers"], local["window"])
    full = ["full_attention"] * 6
    (only_kind,) = read(tmp_path, "exaone4", sliding_window=None, layer_types=full).attention
    assert (len(only_kind.layers), only_kind.window) == (6, None)
    for pattern in (4, "LLLG", "LLG", ...):
        with pytest.raises(RefusedError, match=r"counts no layers\. Add layer_types"):
            read(tmp_path, "exaone4", sliding_window=None, sliding_window_pattern=pattern)
    with pytest.raises(RefusedError, match="'LXG' has other letters than L and G"):
        read(tmp_path, "exaone4", sliding_window_pattern="LXG")
    for pattern in ("LGLG", "LLLG", "L"):
        with pytest.raises(RefusedError, match=f"'{pattern}' is one that engines read differently"):
            read(tmp_path, "exaone4", sliding_window_pattern=pattern)


def test_heads_with_narrower_values_have_the_work_of_the_mean_width(tmp_path: Path) -> None:
    """One reads and multiplies as much as a head of the mean of both, and that is said."""
    decoder = read(tmp_path, "mimo_v2_flash")
    attends = decoder.attention[0]
    assert isinstance(attends, Grouped)
    assert 2 * attends.called_dim == attends.head_dim + attends.values == 16 + 12
    (caveat,) = caveats(decoder)
    assert caveat.startswith(
        "attention with keys of 16 elements and values of 12 is timed as of 14"
    )
    assert "on Hopper vLLM from 0.22.0 on where heads have sinks" in caveat
    with pytest.raises(RefusedError, match="head_dim 16 has no mean with the 11 of values"):
        read(tmp_path, "mimo_v2_flash", v_head_dim=11)
    assert caveats(read(tmp_path, "step3p5")) == ()


FULL, NEAR = "full_attention", "sliding_attention"


@pytest.mark.parametrize(
    ("kind", "changes", "full"),
    [
        ("cwm", {}, (0, 4)),
        ("granite_swa", {}, (0, 4)),
        ("granitemoe_swa", {}, (0, 4)),
        ("ministral", {"sliding_window": None}, (0, 1, 2, 3, 4, 5)),
        ("ministral", {}, ()),
        ("ministral", {"layer_types": [FULL, *[NEAR] * 5]}, (0,)),
        ("mellum", {"layer_types": ...}, (0, 1, 2, 3, 4, 5)),
        ("cohere2_moe", {"mlp_layer_types": ..., "first_k_dense_replace": 1}, (0, 4)),
        (
            "cohere2_moe",
            {"first_k_dense_replace": 3, "prefix_dense_sliding_window_pattern": 2,
             "sliding_window_pattern": 3},
            (1, 5),
        ),
        ("cohere2_moe", {}, (3,)),
    ],
)  # fmt: skip
def test_layers_with_a_window_are_counted_as_their_class_does(
    tmp_path: Path, kind: str, changes: dict[str, Any], full: tuple[int, ...]
) -> None:
    """Where a file says no kinds of layers its class's rule holds; all others have a window."""
    layers_by_window = {
        kind_.window: kind_.layers for kind_ in read(tmp_path, kind, **changes).attention
    }
    assert layers_by_window.get(None, ()) == full
    assert layers_by_window.get(32, ()) == tuple(layer for layer in range(6) if layer not in full)
