"""Mamba-2 mixers, alone in a layer or beside attention: read, counted, cut and refused."""

from math import prod
from pathlib import Path
from typing import Any

import pytest
import torch
from nearfree.backends.names import BackendRelease
from nearfree.core.parallel import Parallel
from nearfree.core.precision import uniform
from nearfree.decoders.attention_kinds import Grouped, Kind, runnable_kinds
from nearfree.decoders.config_file import read_decoder
from nearfree.decoders.details import read_details
from nearfree.decoders.draft_heads import mtp_layer
from nearfree.decoders.model_file import read_model_file
from nearfree.decoders.ranks.attention_uses import (
    DELTA_IN,
    DELTA_NET,
    DELTA_OUT,
    MAMBA,
    OUTPUT,
    QKV,
    base_of,
    role_of,
    state_role,
)
from nearfree.decoders.ranks.caveats import caveats
from nearfree.decoders.ranks.collectives import ATTENTION_SUM, FFN_SUM, MOE_SUM, collectives
from nearfree.decoders.ranks.engines import SGLANG, VLLM
from nearfree.decoders.ranks.modules import (
    DENSE,
    HEAD,
    LATENT_IN,
    LATENT_OUT,
    MOE,
    ROUTER,
    SHARED,
    ModuleUse,
)
from nearfree.decoders.ranks.shards import refusals, shard
from nearfree.decoders.state_kinds import Mamba2
from nearfree.decoders.weights import stored
from nearfree.derive.memory import memory, needs
from nearfree.errors import EvidenceError, RefusedError
from transformers import AutoConfig, AutoModelForCausalLM

from decoders.files import change, modules_by_role, parameters, read, refusal, write

ATTENDS = Grouped(heads=8, kv_heads=2, head_dim=16)
PARALLEL_MIXER = Mamba2(layers=(), heads=4, groups=2, head_dim=24, state_dim=10, conv=4)
SEPARATE_MIXER = Mamba2(
    layers=(), heads=4, groups=2, head_dim=6, state_dim=10, conv=4, state="float32"
)
PATTERN, BLOCKS = "hybrid_override_pattern", "layers_block_type"
LAYER_TYPES = ["mamba", "mlp", "moe", "attention", "mamba", "moe"]
NEW_LAYER_TYPES = ["linear_attention", "mlp", "moe", "full_attention", "linear_attention", "moe"]


def without_layers(kind: Kind) -> dict[str, Any]:
    """Return what a kind says but its layers."""
    return {name: getattr(kind, name) for name in kind.__struct_fields__ if name != "layers"}


def test_layers_of_one_piece_are_told_by_letter(tmp_path: Path) -> None:
    """A mixer, attention, an FFN and experts each have the layers that the pattern says."""
    decoder = read(tmp_path, "nemotron_h")
    mixer, attends = decoder.attention
    assert (mixer.layers, attends.layers) == ((0, 4), (3,))
    assert without_layers(mixer) == without_layers(SEPARATE_MIXER)
    assert without_layers(attends) == without_layers(ATTENDS)
    assert (decoder.dense_layers, decoder.moe_layers, decoder.gated) == (1, 2, False)
    assert decoder.pairs == 3.0  # a norm before each of six pieces, as three common layers have
    assert (decoder.heads, decoder.kv_heads, decoder.head_dim) == (8, 2, 16)


def test_attention_and_a_mixer_run_side_by_side(tmp_path: Path) -> None:
    """Falcon-H1 has both in every layer, and an FFN with a gate behind them."""
    decoder = read(tmp_path, "falcon_h1")
    attends, mixer = decoder.attention
    assert attends.layers == mixer.layers == tuple(range(6))
    assert without_layers(mixer) == without_layers(PARALLEL_MIXER)
    assert without_layers(attends) == without_layers(ATTENDS)
    assert (decoder.dense_layers, decoder.pairs) == (6, 6)
    uses = modules_by_role(decoder)
    assert {use.count for use in uses.values() if use.role != HEAD} == {6}
    assert uses[DENSE].setting.gated


@pytest.mark.parametrize("layer_types", [LAYER_TYPES, NEW_LAYER_TYPES])
@pytest.mark.parametrize("key", [BLOCKS, "layer_types"])
def test_a_list_of_words_says_what_a_pattern_says(
    tmp_path: Path, key: str, layer_types: list[str]
) -> None:
    """Both names of the list and both sets of words are read, alone or beside the pattern."""
    expected = read(tmp_path, "nemotron_h")
    assert read(tmp_path, "nemotron_h", **{PATTERN: ..., key: layer_types}) == expected
    assert read(tmp_path, "nemotron_h", **{key: layer_types}) == expected
    options = {PATTERN: ..., key: layer_types, "num_hidden_layers": ...}
    assert read(tmp_path, "nemotron_h", **options) == expected


@pytest.mark.parametrize(
    ("kind", "changes", "reasons"),
    [
        ("nemotron_h", {PATTERN: "M-E*MX"}, ["'X' of layer 5"]),
        ("nemotron_h", {PATTERN: "M-E*M"}, [f"{PATTERN} 'M-E*M' has 5 entries for 6 layers"]),
        ("nemotron_h", {PATTERN: "M-E*MEM"}, [f"{PATTERN} 'M-E*MEM' has 7 entries for 6 layers"]),
        ("nemotron_h", {BLOCKS: LAYER_TYPES[:5]}, [f"{BLOCKS} [...] has 5 entries for 6 layers"]),
        (
            "nemotron_h",
            {BLOCKS: [*LAYER_TYPES, "moe"]},
            [f"{BLOCKS} [...] has 7 entries for 6 layers"],
        ),
        (
            "nemotron_h",
            {BLOCKS: LAYER_TYPES, "layer_types": [*LAYER_TYPES[:5], "mlp"]},
            [f"layer_types [...] differs from {BLOCKS}"],
        ),
        ("nemotron_h", {BLOCKS: [*LAYER_TYPES[:5], "mlp"]}, [f"of layer 5, and {BLOCKS} says '-'"]),
        ("nemotron_h", {PATTERN: "------"}, ["has neither attention nor a state in any layer"]),
        ("nemotron_h", {"n_groups": 3}, ["n_groups 3 does not divide mamba_num_heads 4"]),
        (
            "nemotron_h",
            {"n_groups": 3, "mamba_ssm_cache_dtype": "int8", "sliding_window": 64,
             "mlp_hidden_act": "silu", "n_shared_experts": 2},
            ["n_groups 3 does not", "mamba_ssm_cache_dtype 'int8' is none of", "sliding_window 64",
             "mlp_hidden_act 'silu' is not relu2", "n_shared_experts 2 is not 1"],
        ),
        ("nemotron_h", {"attention_head_dim": 32}, ["attention_head_dim 32 differs from head_dim"]),
        ("nemotron_h", {"num_experts_per_tok": 5}, ["num_experts_per_tok 5 is larger than"]),
        ("nemotron_h", {"ssm_state_size": 0, "conv_kernel": 0}, ["ssm_state_size 0", "kernel 0"]),
        ("falcon_h1", {"mamba_n_groups": 3}, ["mamba_n_groups 3 does not divide mamba_n_heads 4"]),
        ("falcon_h1", {"mamba_d_ssm": 100}, ["mamba_d_ssm 100 is not mamba_n_heads 4 times"]),
        ("falcon_h1", {"mamba_d_ssm": ...}, ["mamba_d_ssm 1024 is not mamba_n_heads 4 times"]),
        (
            "falcon_h1",
            {"mamba_d_head": "auto", "mamba_n_heads": 5},
            ["mamba_n_heads 5 does not divide mamba_d_ssm 96"],
        ),
        ("falcon_h1", {"hidden_act": "gelu"}, ["hidden_act 'gelu' is not silu"]),
        ("falcon_h1", {BLOCKS: ["hybrid"] * 5 + ["mamba"]}, [f"{BLOCKS} [...] has others than"]),
    ],
)  # fmt: skip
def test_contradictions_are_refused_with_every_reason(
    tmp_path: Path, kind: str, changes: dict[str, Any], reasons: list[str]
) -> None:
    """What engines would read in two ways, or not at all, is refused by its key, all at once."""
    path = write(tmp_path, change(kind, **changes))
    error = refusal(lambda: read_decoder(path))
    assert isinstance(error, RefusedError)
    for reason in reasons:
        assert (
            sum(reason in f"{refusal_.key} {refusal_.reason}" for refusal_ in error.refusals) == 1
        ), error


def test_the_width_of_a_head_may_follow_from_all_heads(tmp_path: Path) -> None:
    """Files of Falcon-H1 may leave a head's width to that of all of them."""
    assert read(tmp_path, "falcon_h1", mamba_d_head="auto") == read(tmp_path, "falcon_h1")


def weights(use: ModuleUse) -> int:
    """Return the weights of a module's products in a forward."""
    setting, matrices = use.setting, 1
    if setting.module == "dense_ffn":
        matrices = 3 if setting.gated else 2
    elif setting.module == "moe_ffn":
        matrices = (2 if setting.gated is False else 3) * (setting.experts or 0)
    return use.count * matrices * (setting.d_model or 0) * (setting.d_ff or 0)


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("falcon_h1", {}),
        ("nemotron_h", {}),
        ("nemotron_h", {"moe_latent_size": 32}),
        ("nemotron_h", {PATTERN: "M-*-M-"}),
    ],
)
def test_products_are_those_of_the_class(
    tmp_path: Path, kind: str, changes: dict[str, Any]
) -> None:
    """Every matrix of transformers' model but the embedding enters one product of the modules.

    Two FLOPs a weight and token: so products have its FLOPs, and what is kept is what it keeps.
    """
    document = change(kind, pad_token_id=0, **changes)
    path = write(tmp_path, document, "config.json")
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(tmp_path))
    expected = sum(
        prod(parameter.shape)
        for name, parameter in model.named_parameters()
        if parameter.ndim > 1 and "embed" not in name and "conv1d" not in name
    )
    decoder = read_decoder(path)
    assert sum(map(weights, modules_by_role(decoder).values())) == expected
    assert parameters(stored(path)) == sum(parameter.numel() for parameter in model.parameters())
    mixer = next(kind_ for kind_ in decoder.attention if isinstance(kind_, Mamba2))
    (entry,) = (cache_entry for cache_entry in stored(path).cache if cache_entry.state_elements)
    assert (entry.layers, entry.state_elements) == (len(mixer.layers), mixer.kept)
    mixer_module = next(module for module in model.modules() if hasattr(module, "conv1d"))
    window = mixer_module.conv1d.weight.shape[0] * (mixer_module.conv1d.weight.shape[-1] - 1)
    assert (
        mixer.kept
        == mixer_module.num_heads * mixer_module.head_dim * mixer_module.ssm_state_size + window
    )


def test_a_mixer_has_two_products_about_one_pass(tmp_path: Path) -> None:
    """The first makes gate, convolved rows and a step a head; its state is in its own format."""
    uses = modules_by_role(read(tmp_path, "nemotron_h"))
    assert {role: uses[role].count for role in (DELTA_IN, MAMBA, DELTA_OUT, QKV, OUTPUT)} == (
        {DELTA_IN: 2, MAMBA: 2, DELTA_OUT: 2, QKV: 1, OUTPUT: 1}
    )
    mixed = 24 + 2 * 2 * 10
    assert (uses[DELTA_IN].setting.d_model, uses[DELTA_IN].setting.d_ff) == (64, 24 + mixed + 4)
    assert (uses[DELTA_OUT].setting.d_model, uses[DELTA_OUT].setting.d_ff) == (24, 64)
    state = uses[MAMBA].setting
    assert (state.module, state.heads, state.kv_heads) == ("mamba2", 4, 2)
    assert (state.head_dim, state.value_dim, state.conv) == (10, 6, 4)
    assert (state.dtype, state.kv_dtype) == ("bfloat16", "float32")
    assert not uses[MAMBA].main


@pytest.mark.parametrize(
    ("kind", "role", "vllm"),
    [("falcon_h1", MAMBA, None), ("qwen3_next", DELTA_NET, None), ("nemotron_h", MAMBA, "float32")],
)
def test_sglang_keeps_states_in_float32(
    tmp_path: Path, kind: str, role: str, vllm: str | None
) -> None:
    """Where a file does not say in what, vLLM keeps them in the element type; memory has both."""
    path = write(tmp_path, change(kind))
    decoder, memory_needs = read_decoder(path), needs(read_model_file(path), None)
    assert memory_needs is not None
    for engine, dtype in ((VLLM, vllm), (SGLANG, "float32")):
        uses = modules_by_role(decoder, moe=BackendRelease(engine.name))
        assert uses[role].setting.kv_dtype == dtype
    matrices = sum(entry.layers * (entry.matrices or 0) for entry in memory_needs.cache)
    extra_bytes = memory_needs.state_bytes(SGLANG, 1) - memory_needs.state_bytes(VLLM, 1)
    assert extra_bytes == (0 if vllm else 2 * matrices)
    assert (
        memory(memory_needs, None, engine=SGLANG).kv_bytes - memory(memory_needs, None).kv_bytes
        == extra_bytes
    )


def test_a_state_keeps_its_format_beside_others(tmp_path: Path) -> None:
    """What a file says of it holds where another element type than the file's is asked for."""
    decoder = read(tmp_path, "nemotron_h", torch_dtype="float32")
    state = modules_by_role(decoder, precision=uniform("bfloat16"))[MAMBA].setting
    assert (state.dtype, state.kv_dtype) == ("bfloat16", "float32")


def test_mixers_that_are_left_out_are_modules_of_their_own(tmp_path: Path) -> None:
    """Of a file that quantises some mixers, products run in both formats, each in its layers."""
    quantised = {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8", "exclude_modules": [
        "lm_head", "backbone.layers.4.mixer.in_proj", "backbone.layers.3.mixer*",
    ]}  # fmt: skip
    write(tmp_path, {"producer": {"name": "modelopt"}, "quantization": quantised},
          "hf_quant_config.json")  # fmt: skip
    file = read_model_file(write(tmp_path, change("nemotron_h"), "config.json"))
    assert (file.mixed, file.refusals) == ((), ())
    assert file.decoder is not None
    uses = modules_by_role(file.decoder, precision=file.precision)
    plain_role = f"{DELTA_IN}, weights in bfloat16, 1 of 6 layers"
    formats = {
        role: (use.count, use.setting.weights or use.setting.dtype)
        for role, use in uses.items()
        if base_of(role) in (DELTA_IN, DELTA_OUT, QKV, DENSE)
    }
    assert formats == {
        DELTA_IN: (1, "float8"), plain_role: (1, "bfloat16"), DELTA_OUT: (2, "float8"),
        QKV: (1, "bfloat16"), DENSE: (1, "float8"),
    }  # fmt: skip


def test_experts_without_a_gate_work_in_their_latent(tmp_path: Path) -> None:
    """Two matrices an expert, as wide as the latent; what leads there and back is whole."""
    decoder = read(tmp_path, "nemotron_h", moe_latent_size=32)
    for tp in (1, 2):
        uses = modules_by_role(decoder, parallel=Parallel(tp=tp))
        sizes = {role: (uses[role].setting.d_model, uses[role].setting.d_ff)
                 for role in (ROUTER, LATENT_IN, MOE, LATENT_OUT, SHARED)}  # fmt: skip
        assert sizes == {
            ROUTER: (64, 4), LATENT_IN: (64, 32), MOE: (32, 24 // tp), LATENT_OUT: (32, 64),
            SHARED: (64, 40 // tp),
        }  # fmt: skip
        assert {uses[role].setting.gated for role in (MOE, SHARED, DENSE)} == {False}
    assert modules_by_role(read(tmp_path, "nemotron_h")).keys().isdisjoint({LATENT_IN, LATENT_OUT})


def test_ranks_have_whole_heads_and_a_single_group_each(tmp_path: Path) -> None:
    """Heads and groups are cut alike; one group is on every rank, and several must divide."""
    decoder = read(tmp_path, "nemotron_h")
    mixer = shard(decoder, Parallel(tp=2)).decoder.attention[0]
    assert isinstance(mixer, Mamba2)
    assert (mixer.heads, mixer.groups, mixer.inputs, mixer.mixed) == (2, 1, 12, 12 + 2 * 10)
    one_group = read(tmp_path, "nemotron_h", n_groups=1)
    mixer = shard(one_group, Parallel(tp=4)).decoder.attention[0]
    assert isinstance(mixer, Mamba2)
    assert (mixer.heads, mixer.groups) == (1, 1)
    reasons_by_tp = {
        tp: [
            refusal_.reason
            for refusal_ in refusals(decoder_, Parallel(tp=tp), VLLM, {})
            if "Mamba" in refusal_.reason
        ]
        for tp, decoder_ in ((2, decoder), (4, decoder), (8, one_group))
    }
    assert reasons_by_tp == {
        2: [],
        4: ["4 does not divide 4 heads of a Mamba-2 mixer in 2 groups"],
        8: ["8 does not divide 4 heads of a Mamba-2 mixer in 1 groups"],
    }


def test_ranks_sum_behind_each_mixer(tmp_path: Path) -> None:
    """A sum over ranks ends each piece of Nemotron-H, and both of a layer of Falcon-H1."""
    engine = BackendRelease("vllm", "0.33.0")
    counts_by_model = {
        kind: {use.role: use.count for use in collectives(
            read(tmp_path, kind), Parallel(tp=2), batch=1, engine=engine)}
        for kind in ("nemotron_h", "falcon_h1")
    }  # fmt: skip
    roles = (ATTENTION_SUM, FFN_SUM, MOE_SUM)
    assert [counts_by_model["nemotron_h"].get(role) for role in roles] == [3, 1, 2]
    assert [counts_by_model["falcon_h1"].get(role) for role in roles] == [12, 6, None]


def test_states_are_kept_in_their_format_by_their_heads(tmp_path: Path) -> None:
    """Matrices take four bytes an element where the file says so, on ranks with their heads."""
    path = write(tmp_path, change("nemotron_h"))
    memory_needs = needs(read_model_file(path), uniform("bfloat16"))
    assert memory_needs is not None
    window = (24 + 2 * 2 * 10) * 3
    states = memory_needs.state_bytes(VLLM, 1)
    assert states == 2 * (4 * 24 * 10 + 2 * window)
    page_bytes = 16 * 2 * 2 * 16 * 2  # a page of one layer, two heads of keys and values
    one_gpu, four_gpus = (
        memory(memory_needs, None, parallel=Parallel(tp=tp), batch=3, context=1).kv_bytes
        for tp in (1, 4)
    )
    assert one_gpu == 3 * (states + page_bytes)
    assert four_gpus == 3 * (states + 2 * page_bytes)  # each head of keys is on two ranks


@pytest.mark.parametrize(
    ("name", "role"),
    [("mixer.in_proj", DELTA_IN), ("mixer.out_proj", DELTA_OUT), ("mamba.in_proj", DELTA_IN),
     ("mixer.conv1d", None), ("mamba.x_proj", None)],
)  # fmt: skip
def test_products_of_a_mixer_are_known_by_name(name: str, role: str | None) -> None:
    """Its two matrices say the formats of their products; its convolution says none."""
    assert state_role(f"backbone.layers.*.{name}") == role
    assert role_of("backbone.layers.*.mixer.o_proj", latent=False) == OUTPUT
    assert role_of("backbone.layers.*.mixer.q_proj", latent=False) == QKV


def test_a_mixer_is_timed_by_its_bytes_and_not_run(tmp_path: Path) -> None:
    """A mixer that no curve covers has a caveat, and a measured forward is refused."""
    for kind, layers in (("nemotron_h", 2), ("falcon_h1", 6)):
        decoder = read(tmp_path, kind)
        (caveat,) = caveats(decoder)
        assert caveat.startswith(f"{layers} of 6 layers (Mamba-2 mixer) are timed by the bytes of")
        with pytest.raises(EvidenceError, match="a Mamba-2 mixer is predicted, not run"):
            runnable_kinds(decoder.attention)
        path = write(tmp_path, change(kind))
        error = refusal(lambda path=path: read_details(path))
        assert error is not None
        assert "predicted, not measured" in error.what


def test_what_a_model_drafts_with_itself_attends(tmp_path: Path) -> None:
    """A further layer of Nemotron-H is its attention and its experts, whatever its last is."""
    layer = mtp_layer(read(tmp_path, "nemotron_h"))
    assert [kind.words for kind in layer.attention] == ["all positions"]
    assert (layer.layers, layer.moe_layers, layer.dense_layers, layer.pairs) == (1, 1, 0, 1)
