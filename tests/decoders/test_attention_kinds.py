"""The kinds of attention of a file's layers, and refusals of files that do not give them."""

import math
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace
from nearfree.backends.names import BackendRelease
from nearfree.core.parallel import ONE_GPU, Parallel
from nearfree.decoders.attention_kinds import (
    Compressed,
    DeltaNet,
    Grouped,
    Kind,
    Latent,
    runnable_kinds,
)
from nearfree.decoders.attention_uses import DELTA_GATES, DELTA_IN, DELTA_OUT, LATENTS, state_role
from nearfree.decoders.caveats import caveats
from nearfree.decoders.config_file import read_decoder
from nearfree.decoders.decoder import Decoder
from nearfree.decoders.modules import DENSE, modules
from nearfree.decoders.weights import stored
from nearfree.errors import EvidenceError, RefusedError

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
    """The kinds of a decoder part its layers."""
    decoder = read(tmp_path, kind)
    layers = [layer for kind_ in decoder.attention for layer in kind_.layers]
    assert sorted(layers) == list(range(decoder.layers))


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


def test_experts_stand_beside_a_dense_ffn(tmp_path: Path) -> None:
    """Each layer of Gemma 4's MoE has both."""
    moe = {"enable_moe_block": True, "num_experts": 4, "top_k_experts": 2,
           "moe_intermediate_size": 24}  # fmt: skip
    decoder = read(tmp_path, "gemma4_text", **moe)
    assert (decoder.dense_layers, decoder.moe_layers, decoder.d_ff) == (6, 6, 96)


def test_layers_without_an_indexer_take_an_earlier_choice(tmp_path: Path) -> None:
    """GLM's layers all select positions, with or without an indexer of their own."""
    types = ["full", "full", "shared", "full", "shared", "shared"]
    indexed, shared = read(tmp_path, "glm_moe_dsa", indexer_types=types).attention
    assert isinstance(indexed, Latent)
    assert isinstance(shared, Latent)
    assert (indexed.layers, indexed.index_heads) == ((0, 1, 3), 3)
    assert (shared.layers, shared.index_heads, shared.selected) == ((2, 4, 5), None, 32)


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


def test_layers_that_predict_further_may_be_listed(tmp_path: Path) -> None:
    """A list may go on with as many layers as the file says to predict further."""
    types = ["sliding_attention", "full_attention"] * 3
    options = {"layer_types": [*types, "full_attention"], "num_nextn_predict_layers": 1}
    assert read(tmp_path, "gpt_oss", **options) == read(tmp_path, "gpt_oss", layer_types=types)


def test_the_projections_of_entries_are_the_stored_matrices(tmp_path: Path) -> None:
    """The products of a layer of each kind are the attention matrices of its checkpoint."""
    file = write(tmp_path, change("deepseek_v4"))
    for kind in read_decoder(file).attention:
        assert isinstance(kind, Compressed)
        for layer in kind.layers:
            stored_in = [
                weight.inputs * weight.outputs
                for weight in stored(file).weights
                if weight.kind == "attention" and weight.inputs > 1 and layer in weight.layers
            ]
            assert kind.projected(64) == sum(stored_in)


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


@pytest.mark.parametrize(
    "kind",
    ["mimo_v2_flash", "step3p5", "gemma3_text", "llama4_text", "afmoe", "laguna", "hy_v3"],
)
def test_the_products_of_a_layer_are_its_stored_matrices(tmp_path: Path, kind: str) -> None:
    """Values of another width and gates of heads are counted as the checkpoint holds them."""
    file = write(tmp_path, change(kind))
    for attends in read_decoder(file).attention:
        assert isinstance(attends, Grouped)
        stored_elements = sum(
            weight.inputs * weight.outputs
            for weight in stored(file).weights
            if weight.kind == "attention"
            and weight.inputs > 1
            and attends.layers[0] in weight.layers
        )
        gates = attends.heads if attends.head_gates else attends.inputs if attends.wide_gates else 0
        assert stored_elements == 64 * (attends.made + gates + attends.inputs)


def test_the_products_of_delta_attention_are_its_stored_matrices(tmp_path: Path) -> None:
    """Queries, keys, values, rates and narrow rows are one product, the gates another."""
    decoder = read(tmp_path, "kimi_linear")
    deployment = {"batch": 1, "context": 64, "attention": BackendRelease("vllm_mla", "0.33.0")}
    moe = {"moe": BackendRelease("sglang", "0.5.23"), "routing": "balanced"}
    uses = {use.role: use.setting for use in modules(decoder, **deployment, **moe)}
    products = [
        (use.d_model, use.d_ff)
        for role, use in uses.items()
        if role.startswith((DELTA_IN, DELTA_GATES, DELTA_OUT))
    ]
    assert products == [(64, 3 * 24 + 4 + 2 * 6), (6, 2 * 24), (24, 64)]
    stored_elements = sum(
        weight.inputs * weight.outputs
        for weight in stored(write(tmp_path, change("kimi_linear"))).weights
        if weight.kind == "state" and weight.inputs > 1 and 0 in weight.layers
        if not weight.name.endswith("conv1d")
    )
    assert stored_elements == sum(inputs * outputs for inputs, outputs in products)
    roles = {name: state_role(f"model.layers.0.self_attn.{name}") for name in (
        "q_proj", "v_proj", "o_proj", "f_a_proj", "g_b_proj"
    )}  # fmt: skip
    assert roles == {
        "q_proj": DELTA_IN, "v_proj": DELTA_IN, "o_proj": DELTA_OUT, "f_a_proj": None,
        "g_b_proj": None,
    }  # fmt: skip


def test_kimi_k3_has_full_gates_and_experts_in_a_latent(tmp_path: Path) -> None:
    """Gates without narrow rows, a gate behind latents, experts in fewer elements, residuals.

    One product makes all that enters delta attention, another the latents and their gate; the
    products of a rank are cut of these, but for narrow rows and latents. At its published sizes
    they are the shapes that vLLM's own kernels are for (kimi_k3/nvidia/low_latency_gemm.py of
    0.33.0): 6,288 rows with 4 to fill up on eight ranks.
    """
    changes: dict[str, Any] = {
        "linear_attn_config": {
            **change("kimi_linear")["linear_attn_config"],
            "use_full_rank_gate": True,
        },
        "q_lora_rank": 20, "mla_use_output_gate": True, "routed_expert_hidden_size": 32,
        "latent_moe_use_norm": True, "attn_res_block_size": 3,
    }  # fmt: skip
    decoder = read(tmp_path, "kimi_linear", **changes)
    kinds = {type(kind): kind for kind in decoder.attention}
    assert kinds[DeltaNet] == DeltaNet(
        layers=(0, 1, 3, 4), heads=4, key_heads=4, key_dim=6, value_dim=6, conv=4,
        state="float32", rank=6, full_gate=True,
    )  # fmt: skip
    assert kinds[Latent] == Latent(layers=(2, 5), query_rank=20, gate=True, **LATENT)
    assert decoder.experts is not None
    assert (decoder.experts.latent, decoder.residual_block) == (32, 3)
    assert any("each 3 layers before them is not timed" in caveat for caveat in caveats(decoder))
    sizes = products(decoder)
    assert [sizes[role] for role in (DELTA_IN, DELTA_GATES, DELTA_OUT, LATENTS)] == [
        (64, 4 * 24 + 4 + 6), (6, 24), (24, 64), (64, 20 + 16 + 8 * 10),
    ]  # fmt: skip
    stored_elements = sum(
        weight.inputs * weight.outputs
        for weight in stored(write(tmp_path, change("kimi_linear", **changes))).weights
        if weight.kind == "state" and weight.inputs > 1 and 0 in weight.layers
        if not weight.name.endswith("conv1d")
    )
    assert stored_elements == sum(
        math.prod(sizes[role]) for role in (DELTA_IN, DELTA_GATES, DELTA_OUT)
    )
    published = replace(
        decoder,
        d_model=7168,
        kinds=(DeltaNet(heads=96, key_heads=96, key_dim=128, value_dim=128, conv=4, rank=128,
                        full_gate=True, layers=(0,)),
               Latent(heads=96, latent=512, rope_dim=64, nope_dim=128, value_dim=128,
                      query_rank=1536, gate=True, layers=(1,))),
    )  # fmt: skip
    rank = products(published, Parallel(tp=8))
    assert rank[DELTA_IN] == (7168, 6288 - 4)
    assert rank[LATENTS] == (7168, 2112 + 12 * 128)


def products(decoder: Decoder, parallel: Parallel = ONE_GPU) -> dict[str, tuple[int, int]]:
    """Return inputs and outputs of a decoder's products by their role."""
    deployment = {"batch": 1, "context": 64, "attention": BackendRelease("vllm_mla", "0.33.0")}
    moe = {"moe": BackendRelease("sglang", "0.5.23"), "routing": "balanced", "parallel": parallel}
    return {
        use.role: (use.setting.d_model or 0, use.setting.d_ff or 0)
        for use in modules(decoder, **deployment, **moe)
    }


def test_ffns_of_several_widths_are_modules_of_their_own(tmp_path: Path) -> None:
    """Layers of Llama-Nemotron have an FFN as wide as was found for each, or none."""
    decoder = read(tmp_path, "nemotron-nas")
    assert decoder.dense_ffns == ((512, 2), (256, 3))
    assert (decoder.d_ff, decoder.dense_layers, decoder.pairs) == (512, 5, (4 + 5) / 2)
    (attends,) = decoder.attention
    assert attends.layers == (0, 2, 3, 5)
    deployment = {"batch": 1, "context": 64, "attention": BackendRelease("flash_attn", "2.8.3")}
    uses = modules(decoder, **deployment, moe=None, routing=None, parallel=Parallel(tp=2))
    widths = [(use.role, use.count, use.setting.d_ff) for use in uses if use.role.startswith(DENSE)]
    assert widths == [
        ("Dense FFN, 512 wide, 2 of 6 layers", 2, 256),
        ("Dense FFN, 256 wide, 3 of 6 layers", 3, 128),
    ]


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


@pytest.mark.parametrize("kind", ["qwen3_next", "qwen3_5_text", "qwen3_5_moe_text"])
def test_a_state_and_its_products_are_what_is_stored_and_kept(tmp_path: Path, kind: str) -> None:
    """Products of both kinds are their checkpoint's matrices; a state is what memory counts."""
    file = write(tmp_path, change(kind))
    of_state, attends = read_decoder(file).attention
    assert isinstance(of_state, DeltaNet)
    assert isinstance(attends, Grouped)
    elements = {
        name: sum(
            weight.inputs * weight.outputs
            for weight in stored(file).weights
            if weight.kind == name and weight.inputs > 1 and not weight.name.endswith("conv1d")
            if layer in weight.layers
        )
        for name, layer in (("state", 0), ("attention", 2))
    }
    assert elements["state"] == 64 * (of_state.mixed + 2 * of_state.inputs + 2 * of_state.heads)
    assert elements["attention"] == 64 * (attends.made + attends.inputs)
    assert (
        sum(entry.layers * entry.state_elements for entry in stored(file).cache)
        == 4 * of_state.kept
    )


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"mamba_ssm_dtype": "float8"}, "mamba_ssm_dtype 'float8' is none of"),
        ({"linear_num_key_heads": 3}, "linear_num_key_heads 3 does not divide 4 heads"),
        ({"layer_types": ["linear_attention"] * 5 + ["mamba"]}, "'mamba' of layer 5"),
    ],
)
def test_states_that_are_not_understood_are_refused(
    tmp_path: Path, changes: dict[str, Any], reason: str
) -> None:
    """A format of states, heads or a kind of layer that no engine has is refused by its key."""
    with pytest.raises(RefusedError, match=reason):
        read(tmp_path, "qwen3_5_text", **changes)


def test_a_state_is_timed_by_its_bytes_and_not_run(tmp_path: Path) -> None:
    """A state that no curve covers has a caveat, and a measured forward is refused by name."""
    decoder = read(tmp_path, "qwen3_next")
    (caveat,) = caveats(decoder)
    assert caveat.startswith("4 of 6 layers (gated delta net) are timed by the bytes of their")
    with pytest.raises(EvidenceError, match="a gated delta net is predicted, not run"):
        runnable_kinds(decoder.attention)


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


@pytest.mark.parametrize("kind", ["granitemoe_swa", "granitemoeshared"])
def test_what_all_tokens_pass_may_be_left_out(tmp_path: Path, kind: str) -> None:
    """Granite's MoE models have a Dense FFN beside the experts where its width is not 0."""
    assert read(tmp_path, kind).beside is True
    for changes in ({"shared_intermediate_size": 0}, {"shared_intermediate_size": ...}):
        decoder = read(tmp_path, kind, **changes)
        assert (decoder.d_ff, decoder.dense_layers, decoder.moe_layers) == (None, 0, 6)


def test_command_a_plus_has_dense_layers_of_their_own_width(tmp_path: Path) -> None:
    """Its first layers are as wide as the file says, else as an expert, as are shared ones."""
    dense_first = {"mlp_layer_types": ..., "first_k_dense_replace": 2}
    decoder = read(tmp_path, "cohere2_moe", prefix_dense_intermediate_size=160, **dense_first)
    assert (decoder.d_ff, decoder.moe_layers) == (160, 4)
    assert read(tmp_path, "cohere2_moe", **dense_first).d_ff == 96
    shared = read(tmp_path, "cohere2_moe", num_shared_experts=2).experts
    assert shared is not None
    assert (shared.d_ff, shared.shared_d_ff) == (96, 192)


def test_parallel_attention_and_ffn_have_a_caveat(tmp_path: Path) -> None:
    """Command A+ has attention and FFN on two streams, which no time of either says."""
    matching = [
        caveat for caveat in caveats(read(tmp_path, "cohere2_moe")) if "in parallel" in caveat
    ]
    assert len(matching) == 1
    assert not any("in parallel" in caveat for caveat in caveats(read(tmp_path, "cohere2")))
