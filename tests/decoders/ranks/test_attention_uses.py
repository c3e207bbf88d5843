"""Attention by kind of layer: sizes, counts and names of its modules."""

from math import prod
from pathlib import Path
from typing import Any

import pytest
from nearfree.backends.names import BackendRelease
from nearfree.core.modules.attention_layer import DECODE
from nearfree.core.modules.registry import kind_of
from nearfree.core.parallel import Parallel
from nearfree.core.precision import Product, uniform
from nearfree.decoders.attention_kinds import Compressed
from nearfree.decoders.decoder import Decoder
from nearfree.decoders.ranks.attention_uses import (
    ABSORB,
    DELTA_GATES,
    DELTA_IN,
    DELTA_NET,
    DELTA_OUT,
    INDEX_KEY,
    INDEX_QUERY,
    INDEXER,
    LATENT,
    LATENTS,
    LAYER,
    OUTPUT,
    OUTPUT_GATE,
    QKV,
    QUERY,
    RELEASE,
    SELECTION,
    base_of,
    role_of,
)
from nearfree.decoders.ranks.engines import VLLM
from nearfree.decoders.ranks.modules import MIXING, ModuleUse, modules
from nearfree.decoders.ranks.shards import refusals, shard
from nearfree.decoders.state_kinds import DeltaNet

from decoders.files import read

FLASH, LATENT_KERNEL = BackendRelease("flash_attn", "2.8.3"), BackendRelease("vllm_mla")


def modules_by_role(
    decoder: Decoder, backend: BackendRelease = FLASH, **changes: Any
) -> dict[str, ModuleUse]:
    """Return the modules of a forward by their role."""
    defaults: dict[str, Any] = {
        "batch": 2, "context": 1024, "moe": BackendRelease("vllm", "0.33.0"),
        "routing": "balanced",
    }  # fmt: skip
    uses = modules(decoder, attention=backend, **defaults | changes)
    return {use.role: use for use in uses}


def test_each_kind_attends_with_its_own_context_and_heads(tmp_path: Path) -> None:
    """A window reads no more than it sees; heads of Gemma 4 differ by kind, and so products do."""
    uses = modules_by_role(read(tmp_path, "gemma4_text"))
    window_role, full_role = "window 32, 3 of 6 layers", "all positions, 3 of 6 layers"
    assert {role: use.count for role, use in uses.items() if base_of(role) != role} == {
        f"{base}, {kind}": 3
        for base in (QKV, "attention", OUTPUT)
        for kind in (window_role, full_role)
    }
    contexts = [uses[f"attention, {kind}"].setting.context for kind in (window_role, full_role)]
    widths = [uses[f"{OUTPUT}, {kind}"].setting.d_model for kind in (window_role, full_role)]
    assert (contexts, widths) == ([32, 1024], [8 * 16, 8 * 32])


def test_products_of_one_size_are_one_module(tmp_path: Path) -> None:
    """Layers that differ in what they see have the same products, which run once a layer."""
    uses = modules_by_role(read(tmp_path, "gpt_oss"))
    assert (uses[QKV].count, uses[OUTPUT].count) == (6, 6)
    calls = [role for role in uses if base_of(role) == "attention"]
    assert calls == [
        "attention, window 32, 3 of 6 layers",
        "attention, all positions, 3 of 6 layers",
    ]
    assert all(uses[role].main for role in calls)


def test_a_chunk_ends_the_growth_with_context(tmp_path: Path) -> None:
    """Llama 4's chunked layers see the positions of their chunk at most, the others all."""
    decoder = read(tmp_path, "llama4_text", attention_chunk_size=256)
    short_context, long_context = (
        modules_by_role(decoder, context=context) for context in (100, 10_000)
    )
    role = "attention, chunks of 256, 5 of 6 layers"
    assert (short_context[role].setting.context, long_context[role].setting.context) == (100, 256)


def test_gates_as_wide_as_heads_are_a_product_in_the_format_of_attention(tmp_path: Path) -> None:
    """Trinity's gates are no part of the product of queries, and are quantised as it is."""
    precision = uniform("bfloat16").with_products(
        lambda product, kind: Product("float8", "float8") if kind == "attention" else product
    )
    uses = modules_by_role(read(tmp_path, "afmoe"), precision=precision)
    gate, qkv = uses[OUTPUT_GATE], uses[QKV]
    assert (gate.setting.d_model, gate.setting.d_ff, gate.count) == (64, 8 * 16, 6)
    assert (qkv.setting.d_ff, qkv.count) == ((8 + 2 * 2) * 16, 6)
    assert gate.setting.dtype == qkv.setting.dtype == "float8"
    part = shard(read(tmp_path, "afmoe"), Parallel(tp=2), VLLM).decoder
    assert modules_by_role(part)[OUTPUT_GATE].setting.d_ff == 8 * 16 // 2


def test_keys_that_are_values_are_made_once(tmp_path: Path) -> None:
    """Where keys are values too, one product of a key's width makes both; in engines each."""
    options = {"attention_k_eq_v": True, "num_global_key_value_heads": 1}
    decoder, role = read(tmp_path, "gemma4_text", **options), f"{QKV}, all positions, 3 of 6 layers"
    assert modules_by_role(decoder)[role].setting.d_ff == (8 + 1) * 32
    engine = BackendRelease("vllm_triton", "0.33.0")
    assert modules_by_role(decoder, engine)[role].setting.d_ff == (8 + 2) * 32
    shared = read(tmp_path, "gemma4_text", **options, num_kv_shared_layers=3)
    roles = modules_by_role(shared, engine)
    assert roles[f"{QKV}, all positions, shared cache, 2 of 6 layers"].setting.d_ff == 8 * 32


@pytest.mark.parametrize(
    ("kind", "latents", "query"), [("deepseek_v3", 12 + 4, 64), ("deepseek_v32", 20 + 12 + 4, 20)]
)
def test_the_modules_of_a_latent(tmp_path: Path, kind: str, latents: int, query: int) -> None:
    """Queries come of a latent of their own where there is one; the cache is one latent head."""
    uses = modules_by_role(read(tmp_path, kind), LATENT_KERNEL)
    sizes = {role: (use.setting.d_model, use.setting.d_ff) for role, use in uses.items()}
    assert sizes[LATENTS] == (64, latents)
    assert sizes[QUERY] == (query, 8 * (6 + 4))
    assert sizes[ABSORB] == (6, 8 * 12)
    assert sizes[RELEASE] == (8 * 12, 10)
    assert sizes[OUTPUT] == (8 * 10, 64)
    call = uses[LATENT].setting
    assert (call.module, call.backend, call.api) == ("mla", "vllm_mla", "absorbed")
    assert (call.heads, call.latent, call.rope_dim) == (8, 12, 4)
    assert uses[LATENT].main
    assert {use.count for role, use in uses.items() if role in (LATENTS, QUERY, LATENT)} == {6}


def test_an_indexer_sees_all_and_attention_what_it_chose(tmp_path: Path) -> None:
    """Layers with an indexer run it over all L; those without attend to as many positions."""
    types = ["full", "full", "shared", "full", "shared", "shared"]
    decoder = read(tmp_path, "glm_moe_dsa", indexer_types=types)
    uses = modules_by_role(decoder, LATENT_KERNEL, context=5000)
    index = uses[INDEXER]
    assert (index.count, index.setting.context, index.setting.heads) == (3, 5000, 3)
    assert not index.main
    chosen = uses[SELECTION]
    assert (chosen.count, chosen.main) == (3, False)
    assert (index.setting.api, chosen.setting.api) == ("logits", "select")
    assert (uses[INDEX_QUERY].setting.d_model, uses[INDEX_QUERY].setting.d_ff) == (20, 3 * 14)
    assert (uses[INDEX_KEY].setting.d_model, uses[INDEX_KEY].setting.d_ff) == (64, 14 + 3)
    calls = {role: use for role, use in uses.items() if base_of(role) == LATENT}
    assert {use.setting.selected for use in calls.values()} == {32}
    assert sum(use.count for use in calls.values()) == 6


def test_absorbed_products_have_the_weights_of_the_widening_matrix(tmp_path: Path) -> None:
    """What takes queries in and values out holds what kv_b_proj holds, once each."""
    uses = modules_by_role(read(tmp_path, "deepseek_v3"), LATENT_KERNEL)
    absorbed = (uses[role].setting for role in (ABSORB, RELEASE))
    elements = sum(prod((use.d_model or 0, use.d_ff or 0)) for use in absorbed)
    assert elements == 12 * 8 * (6 + 10)


def test_a_rank_has_latents_whole_and_heads_in_part(tmp_path: Path) -> None:
    """Over ranks heads are cut, and what makes the latents and chooses positions is not."""
    decoder = read(tmp_path, "deepseek_v32")
    one_gpu = modules_by_role(decoder, LATENT_KERNEL)
    part = modules_by_role(decoder, LATENT_KERNEL, parallel=Parallel(tp=4))
    for role in (LATENTS, INDEX_QUERY, INDEX_KEY, INDEXER, SELECTION):
        assert part[role].setting == one_gpu[role].setting
    assert part[LATENT].setting.heads == 2
    for role in (QUERY, ABSORB):
        assert part[role].setting.d_ff == (one_gpu[role].setting.d_ff or 0) / 4
    for role in (RELEASE, OUTPUT):
        assert part[role].setting.d_model == (one_gpu[role].setting.d_model or 0) / 4


def test_a_role_has_the_formats_of_its_own_matrices(tmp_path: Path) -> None:
    """What is stored otherwise than most of attention runs so; what is absorbed is plain."""
    block = Product("float8_block", "float8_block")
    base = uniform("bfloat16")
    precision = type(base)(
        plain="bfloat16", kv="bfloat16", attention=block, ffn=block, experts=block,
        shared_experts=block, router=base.router, lm_head=base.lm_head,
        roles=((OUTPUT, Product("nvfp4", "nvfp4")),),
    )  # fmt: skip
    uses = modules_by_role(read(tmp_path, "deepseek_v32"), LATENT_KERNEL, precision=precision)
    assert [uses[role].setting.dtype for role in (LATENTS, OUTPUT, ABSORB, INDEX_KEY, LATENT)] == [
        "float8_block", "nvfp4", "bfloat16", "bfloat16", "bfloat16",
    ]  # fmt: skip
    assert uses[INDEXER].setting.dtype == "float8"


@pytest.mark.parametrize(
    ("name", "latent", "role"),
    [
        ("model.layers.*.self_attn.q_proj", False, QKV),
        ("model.layers.*.self_attn.q_proj", True, QUERY),
        ("model.layers.*.self_attn.q_b_proj", True, QUERY),
        ("model.layers.*.self_attn.kv_a_proj_with_mqa", True, LATENTS),
        ("model.layers.*.self_attn.o_proj", True, OUTPUT),
        ("model.layers.*.self_attn.gate_proj", False, OUTPUT_GATE),
        ("model.layers.*.self_attn.g_proj", False, OUTPUT_GATE),
        ("model.layers.*.self_attn.g_proj", True, None),
        ("model.layers.*.attention.dense", False, OUTPUT),
        ("model.layers.*.self_attn.indexer.wq_b", True, INDEX_QUERY),
        ("model.layers.*.self_attn.indexer.weights_proj", True, None),
        ("model.layers.*.self_attn.kv_b_proj", True, None),
    ],
)
def test_the_name_of_a_matrix_gives_its_role(*, name: str, latent: bool, role: str | None) -> None:
    """The names of a checkpoint determine which module's formats a matrix has."""
    assert role_of(name, latent=latent) == role


@pytest.mark.parametrize("kind", ["gpt_oss", "gemma4_text", "deepseek_v3", "deepseek_v32"])
def test_every_module_of_a_kind_counts_its_work(tmp_path: Path, kind: str) -> None:
    """Each module has a work that grows with the positions."""
    backend = LATENT_KERNEL if kind.startswith("deepseek") else FLASH
    for use in modules_by_role(read(tmp_path, kind), backend).values():
        at_one, at_eight = (kind_of(use.setting).executed(use.setting, n, "") for n in (1, 8))
        assert 0 < at_one.flop_logical < at_eight.flop_logical


def test_attention_to_entries_is_one_module_of_each_kind(tmp_path: Path) -> None:
    """Layers of one kind are a module with all their products; those of a window end with it."""
    decoder = read(tmp_path, "deepseek_v4")
    uses = {
        role: use
        for role, use in modules_by_role(decoder, LATENT_KERNEL, context=4096).items()
        if base_of(role) == LAYER
    }
    assert {role: use.count for role, use in uses.items()} == {
        f"{LAYER}, window 32 alone, 2 of 6 layers": 2,
        f"{LAYER}, entries of 4 positions, 32 selected, window 32, 2 of 6 layers": 2,
        f"{LAYER}, entries of 128 positions, window 32, 2 of 6 layers": 2,
    }
    window_layer, selecting, unselected = (use.setting for use in uses.values())
    assert [setting.context for setting in (window_layer, selecting, unselected)] == [
        32,
        4096,
        4096,
    ]
    assert [setting.span for setting in (window_layer, selecting, unselected)] == [128, 4, 128]
    assert [setting.selected for setting in (window_layer, selecting, unselected)] == [
        None,
        32,
        None,
    ]
    assert {setting.api for setting in (window_layer, selecting, unselected)} == {DECODE}
    assert all(
        setting.latent == 128 and setting.heads == 8
        for setting in (window_layer, selecting, unselected)
    )
    all_uses = modules_by_role(decoder, LATENT_KERNEL)
    assert not {QKV, OUTPUT, LATENTS} & set(all_uses)
    mixing = all_uses[MIXING]  # before and behind attention and the FFN
    assert (mixing.count, mixing.setting.streams, mixing.main) == (2 * 6, 3, False)


def test_a_rank_has_whole_groups_of_heads(tmp_path: Path) -> None:
    """Heads and their groups are cut; the key, compressors and the indexer lie on every rank."""
    decoder = read(tmp_path, "deepseek_v4")
    for kind_of_model, kind_of_rank in zip(
        decoder.attention, shard(decoder, Parallel(tp=2)).decoder.attention, strict=True
    ):
        assert isinstance(kind_of_model, Compressed)
        assert isinstance(kind_of_rank, Compressed)
        assert (kind_of_rank.heads, kind_of_rank.groups, kind_of_rank.width) == (4, 1, 128)
        halved = 20 * 4 * 128 + 12 * (4 * 128 + 64)  # of the query, and of both output products
        assert kind_of_model.projected(64) - kind_of_rank.projected(64) == halved


def test_entries_name_the_one_module_whatever_their_plain_parts_are() -> None:
    """Products are of the layer; compressors and index weights, which are never quantised, none."""
    roles = {name: role_of(f"layers.0.attn.{name}", latent=False, compressed=True)
             for name in ("wq_a", "wo_b", "indexer.wq_b", "compressor.wkv",
                          "indexer.compressor.wgate", "indexer.weights_proj")}  # fmt: skip
    assert [*roles.values()] == [LAYER] * 3 + [None] * 3


def test_a_state_has_three_products_about_one_pass(tmp_path: Path) -> None:
    """Layers with a state run their own products, those that attend a query with its gate."""
    uses = modules_by_role(read(tmp_path, "qwen3_5_text"))
    roles = (DELTA_IN, DELTA_GATES, DELTA_NET, DELTA_OUT)
    assert {role: uses[role].count for role in (*roles, QKV, "attention", OUTPUT)} == (
        dict.fromkeys(roles, 4) | {QKV: 2, "attention": 2, OUTPUT: 2}
    )
    assert (uses[DELTA_IN].setting.d_ff, uses[DELTA_GATES].setting.d_ff) == (96 + 64, 8)
    assert uses[QKV].setting.d_ff == 16 * (8 + 8 + 2 + 2)
    state = uses[DELTA_NET].setting
    assert (state.heads, state.kv_heads, state.head_dim, state.value_dim) == (4, 2, 8, 16)
    assert (state.dtype, state.kv_dtype, state.conv) == ("bfloat16", "float32", 4)
    assert not uses[DELTA_NET].main
    assert modules_by_role(read(tmp_path, "qwen3_next"))[DELTA_NET].setting.kv_dtype is None


def test_a_rank_has_whole_heads_of_states(tmp_path: Path) -> None:
    """Heads of keys and values are cut alike; more ranks than heads of keys are refused."""
    decoder = read(tmp_path, "qwen3_5_text")
    kind = shard(decoder, Parallel(tp=2)).decoder.attention[0]
    assert isinstance(kind, DeltaNet)
    assert (kind.heads, kind.key_heads, kind.mixed) == (2, 1, 48)
    (refusal,) = [
        refusal_
        for refusal_ in refusals(decoder, Parallel(tp=4), VLLM, {})
        if "delta" in refusal_.reason
    ]
    assert refusal.reason == "4 does not divide 2 heads of keys of a gated delta net"


@pytest.mark.parametrize(
    ("name", "role"),
    [("in_proj_qkvz", DELTA_IN), ("in_proj_z", DELTA_IN), ("out_proj", DELTA_OUT),
     ("in_proj_ba", None), ("conv1d", None)],
)  # fmt: skip
def test_products_of_a_state_are_known_by_name(name: str, role: str | None) -> None:
    """Its large matrices say the formats of their products; gates and convolution say none."""
    assert role_of(f"model.layers.*.linear_attn.{name}", latent=False) == role
