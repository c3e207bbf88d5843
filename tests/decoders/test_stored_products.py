"""Modules of a decoder: the products and states that its checkpoint stores, by kind of layer."""

import math
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from nearfree.backends.names import BackendRelease
from nearfree.core.parallel import ONE_GPU, Parallel
from nearfree.decoders.attention_kinds import Compressed, Grouped, Latent, runnable_kinds
from nearfree.decoders.config_file import read_decoder
from nearfree.decoders.decoder import Decoder
from nearfree.decoders.ranks.attention_uses import (
    DELTA_GATES,
    DELTA_IN,
    DELTA_OUT,
    LATENTS,
    state_role,
)
from nearfree.decoders.ranks.caveats import caveats
from nearfree.decoders.ranks.modules import DENSE, modules
from nearfree.decoders.state_kinds import DeltaNet
from nearfree.decoders.weights import stored
from nearfree.errors import EvidenceError, RefusedError

from decoders.files import change, read, write
from decoders.test_attention_kinds import LATENT


def test_experts_stand_beside_a_dense_ffn(tmp_path: Path) -> None:
    """Each layer of Gemma 4's MoE has both."""
    moe = {"enable_moe_block": True, "num_experts": 4, "top_k_experts": 2,
           "moe_intermediate_size": 24}  # fmt: skip
    decoder = read(tmp_path, "gemma4_text", **moe)
    assert (decoder.dense_layers, decoder.moe_layers, decoder.d_ff) == (6, 6, 96)


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
