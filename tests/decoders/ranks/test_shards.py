"""Shards: the parts of all ranks are the whole, and what no engine cuts is refused."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from nearfree.backends.names import BackendRelease
from nearfree.core.modules.moe_ffn import local_experts
from nearfree.core.modules.registry import kind_of
from nearfree.core.parallel import ONE_GPU, Parallel
from nearfree.core.precision import DTYPES, uniform
from nearfree.decoders.altup import CORRECTION, PREDICTION, ROUTERS
from nearfree.decoders.attention_kinds import Compressed, Grouped
from nearfree.decoders.config_file import read_decoder
from nearfree.decoders.decoder import Decoder
from nearfree.decoders.ranks.attention_uses import (
    DELTA_IN,
    INDEX_KEY,
    INDEX_QUERY,
    INDEXER,
    LATENTS,
    LAYER,
    SELECTION,
    base_of,
)
from nearfree.decoders.ranks.engines import ENGINES, SGLANG, TRTLLM, VLLM, Engine
from nearfree.decoders.ranks.modules import (
    ATTENTION,
    DENSE,
    HEAD,
    INPUT_GATE,
    INPUT_OUTPUT,
    MIXING,
    MOE,
    OUTPUT,
    QKV,
    ROUTER,
    SHARED,
    ModuleUse,
    modules,
)
from nearfree.decoders.ranks.shards import UNEVEN_EXPERTS, refusals, shard
from nearfree.decoders.state_kinds import DeltaNet

from decoders.files import CONFIG, SMALL, write

PARALLEL = st.builds(
    lambda tp, dp, part, pp: Parallel(tp=tp, dp=dp, ep=[1, tp, tp * dp][part], pp=pp),
    st.sampled_from([1, 2, 4, 8]),
    st.sampled_from([1, 2, 4]),
    st.integers(0, 2),
    st.integers(1, 4),
)
BLOCKS = dict.fromkeys(("attention", "ffn", "experts", "shared_experts"), (128, 128))
LARGE = read_decoder(CONFIG / "models" / "qwen3_30b_a3b.json")


def roles(
    decoder: Decoder, parallel: Parallel, engine: Engine, batch: int, dtype: Any
) -> dict[str, ModuleUse]:
    """Return the modules of a rank by their role."""
    uses = modules(
        decoder, batch=batch, context=64, attention=BackendRelease("flash_attn", "2.8.3"),
        moe=BackendRelease(engine.name, "0"), routing="balanced", precision=uniform(dtype),
        parallel=parallel,
    )  # fmt: skip
    return {use.role: use for use in uses}


def flop(use: ModuleUse, n: int) -> int:
    """Return the FLOPs of a module's runs in one forward."""
    return use.count * kind_of(use.setting).executed(use.setting, n, "").flop_logical


def of_kind(decoder: Decoder, role: str, tp: int) -> tuple[int, int] | None:
    """Return what all ranks make of queries, keys and values, and what the model has of them.

    Heads of keys lie on several ranks where they are fewer; of delta attention the narrow rows of
    its gates lie on each.
    """
    named = [kind for kind in decoder.attention if kind.words in role]
    kinds = sorted(named, key=lambda kind: -len(kind.words)) or decoder.attention
    if base_of(role) == QKV:
        kind = next(kind_ for kind_ in kinds if isinstance(kind_, Grouped))
        if kind.query_rank:  # the one head of keys and the queries' latent lie on each
            return kind.made * tp, kind.made
        of_keys = kind.made - kind.queries
        return kind.queries + of_keys * max(kind.kv_heads, tp) // kind.kv_heads, kind.made
    delta_net = next((kind_ for kind_ in kinds if isinstance(kind_, DeltaNet) and kind_.rank), None)
    if base_of(role) == DELTA_IN and delta_net and delta_net.rank:
        rows = delta_net.mixed + delta_net.heads
        return rows + 2 * delta_net.rank * tp, rows + 2 * delta_net.rank
    return None


def without_heads(decoder: Decoder, use: ModuleUse) -> ModuleUse:
    """Return what each rank makes whole of a layer of attention to entries: latents and indexer."""
    kinds = (kind_ for kind_ in decoder.attention if isinstance(kind_, Compressed))
    kind = next(kind_ for kind_ in kinds if kind_.words in use.role)
    projected = replace(kind, heads=0, groups=0).projected(decoder.d_model)
    return replace(use, setting=replace(use.setting, heads=0, projected=projected))


def of_ranks(decoder: Decoder, use: ModuleUse, tp: int) -> ModuleUse:
    """Return a layer over selected blocks as large as that of all ranks together.

    Heads of keys and of the indexer lie on several ranks where they are fewer, its key on each.
    """
    kind = next(
        kind_ for kind_ in decoder.attention if isinstance(kind_, Grouped) and kind_.selected
    )
    of_all_ranks = replace(
        kind, kv_heads=max(tp, kind.kv_heads), index_heads=max(tp, kind.index_heads or 0)
    )
    projected = of_all_ranks.projected(decoder.d_model) + (tp - 1) * decoder.d_model * (
        kind.index_dim or 0
    )
    sizes = {
        "kv_heads": of_all_ranks.kv_heads,
        "index_heads": of_all_ranks.index_heads,
        "projected": projected,
    }
    return replace(use, setting=replace(use.setting, **sizes))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    kind=st.sampled_from(sorted(SMALL)),
    parallel=PARALLEL,
    engine=st.sampled_from(sorted(ENGINES)),
    dtype=st.sampled_from(DTYPES),
    n=st.integers(1, 9),
    requests=st.integers(1, 3),
)
@example(
    kind="gemma3n_text", parallel=Parallel(tp=2, dp=2, ep=1, pp=1), engine="vllm",
    dtype="bfloat16", n=2, requests=1,
)  # fmt: skip
@example(
    kind="gemma3n_text", parallel=Parallel(tp=4, dp=1, ep=1, pp=4), engine="vllm",
    dtype="bfloat16", n=2, requests=1,
)  # fmt: skip
@example(
    kind="step3_text", parallel=Parallel(tp=2, dp=1, ep=1, pp=1), engine="sglang",
    dtype="bfloat16", n=1, requests=1,
)  # fmt: skip
def test_parts_of_all_ranks_are_the_whole(
    *,
    tmp_path: Path,
    kind: str,
    parallel: Parallel,
    engine: str,
    dtype: Any,
    n: int,
    requests: int,
) -> None:
    """FLOPs add up over ranks, but for what each has whole.

    That are heads of keys that lie on several, latents, the mixing of streams, what layer inputs
    and alternating states take beside their projections, and routers where ranks do not part their
    group's rows before them. Rows that only fill a vocabulary up count as the LM head's, columns
    that fill the last part of an expert up as the experts'.
    """
    decoder, engine_ = read_decoder(write(tmp_path, SMALL[kind])), ENGINES[engine]
    if decoder.experts is None:
        parallel, engine_ = replace(parallel, ep=1), VLLM
    assume(not refusals(decoder, parallel, engine_, {}))
    if kind == "mimo_v2_flash":  # both kinds have one head of keys a rank then: one product
        assume(parallel.tp < 4)
    batch = requests * parallel.ranks * (decoder.experts.experts if decoder.experts else 1)
    one_gpu, one_rank = (
        roles(decoder, degrees, engine_, batch, dtype) for degrees in (ONE_GPU, parallel)
    )
    assert [*one_gpu] == [*one_rank]
    ranks, tp = parallel.ranks, parallel.tp
    rows_shared = ranks if engine_.over_all else tp
    wider = {
        ROUTER: (1 if engine_.uses_sequence_parallel(parallel, kind) else rows_shared, 1),
        **dict.fromkeys((LATENTS, INDEX_QUERY, INDEX_KEY, INDEXER, SELECTION, MIXING), (tp, 1)),
        **dict.fromkeys((INPUT_GATE, INPUT_OUTPUT, ROUTERS, PREDICTION, CORRECTION), (tp, 1)),
        HEAD: (engine_.padded(decoder.vocabulary, engine_.ranks(parallel)), decoder.vocabulary),
    }
    if engine_.ranks(parallel) == 1:
        wider.pop(HEAD)
    if decoder.experts and kind in UNEVEN_EXPERTS:
        rank_experts = roles(decoder, parallel, engine_, batch, dtype)[MOE].setting
        wider[MOE] = (parallel.moe_tp * (rank_experts.d_ff or 0), decoder.experts.d_ff)
    for role, use in one_rank.items():
        extra, share = of_kind(decoder, role, tp) or wider.get(base_of(role), (1, 1))
        of_ranks_flop = ranks * flop(use, n) * share
        expected = flop(one_gpu[role], n) * extra
        if role == MOE and decoder.experts and decoder.experts.experts % parallel.ep:
            assert of_ranks_flop > expected
        elif decoder.in_blocks and base_of(role) == LAYER:
            assert of_ranks_flop == flop(of_ranks(decoder, one_gpu[role], tp), n), role
        elif base_of(role) == LAYER:  # counts that are no whole numbers, as few entries are
            expected += (tp - 1) * flop(without_heads(decoder, one_gpu[role]), n)
            assert abs(of_ranks_flop - expected) <= ranks * one_gpu[role].count, role
        else:
            assert of_ranks_flop == expected, role


@given(
    layers=st.integers(1, 130), stages=st.integers(1, 16), engine=st.sampled_from([VLLM, SGLANG])
)
def test_stages_share_all_layers(layers: int, stages: int, engine: Engine) -> None:
    """Stages have all layers between them, and none has more than one above another."""
    layers_by_stage = engine.layers(layers, stages)
    assert (len(layers_by_stage), sum(layers_by_stage)) == (stages, layers)
    assert max(layers_by_stage) - min(layers_by_stage) <= 1


@pytest.mark.parametrize(
    ("engine", "layers", "stages", "layers_by_stage"),
    [
        (VLLM, 61, 2, (31, 30)),
        (VLLM, 61, 4, (15, 15, 16, 15)),
        (SGLANG, 61, 2, (30, 31)),
        (SGLANG, 62, 4, (15, 15, 16, 16)),
    ],
)
def test_a_rest_of_layers_lies_where_the_engine_puts_it(
    engine: Engine, layers: int, stages: int, layers_by_stage: tuple[int, ...]
) -> None:
    """VLLM spares the last stage, SGLang the first ones."""
    assert engine.layers(layers, stages) == layers_by_stage


def test_a_rank_has_a_head_at_least() -> None:
    """Four heads of keys on eight ranks lie twice each; queries are parted all the same."""
    decoder = shard(LARGE, Parallel(tp=8)).decoder
    assert (LARGE.heads, LARGE.kv_heads) == (32, 4)
    assert (decoder.heads, decoder.kv_heads) == (4, 1)
    assert decoder.experts
    assert decoder.experts.d_ff == 96


def test_groups_attend_to_their_own_requests() -> None:
    """With dp each group attends to its part of the requests, and experts see them all."""
    uses = roles(LARGE, Parallel(dp=8, ep=8), VLLM, 20, "bfloat16")
    batches = {role: use.setting.batch for role, use in uses.items()}
    assert batches.pop(MOE) == 20
    assert set(batches.values()) == {3}
    assert uses[MOE].setting.ep == 8
    assert uses[ATTENTION].setting.heads == 32


def test_engines_differ_in_what_groups_share() -> None:
    """SGLang cuts the FFN and the LM head over all ranks, which then see all requests."""
    decoder = read_decoder(CONFIG / "models" / "ling_2_0_mini.json")
    spread = Parallel(tp=2, dp=4)
    vllm, sglang = (roles(decoder, spread, engine, 8, "bfloat16") for engine in (VLLM, SGLANG))
    for role in (DENSE, SHARED, HEAD):
        assert (vllm[role].setting.batch, sglang[role].setting.batch) == (2, 8)
    assert vllm[DENSE].setting.d_ff == 4 * (sglang[DENSE].setting.d_ff or 0)
    assert vllm[OUTPUT].setting == sglang[OUTPUT].setting


@pytest.mark.parametrize(("ep", "batch", "width"), [(8, 5, 48), (1, 20, 12)])
def test_shared_experts_are_whole_where_rows_are_parted(
    tmp_path: Path, ep: int, batch: int, width: int
) -> None:
    """With ep a rank of vLLM's makes its part of its group's rows ready, by all of the matrices."""
    decoder = read_decoder(write(tmp_path, SMALL["deepseek_v3"]))
    uses = roles(decoder, Parallel(tp=4, dp=2, ep=ep), VLLM, 40, "bfloat16")
    assert uses[SHARED].setting.d_ff == width
    assert {uses[role].setting.batch for role in (ROUTER, SHARED)} == {batch}
    assert (uses[DENSE].setting.batch, uses[MOE].setting.batch) == (20, 40)
    groups = {"shared_experts": (48, 48)}
    reported = refusals(decoder, Parallel(tp=4, dp=2, ep=ep), VLLM, groups)
    assert ["shared experts" in refusal.reason for refusal in reported] == [True] * (ep == 1)


@pytest.mark.parametrize(("kind", "refused"), [("mimo_v2_flash", 0), ("qwen3_moe", 1)])
def test_blocks_of_keys_are_cut_where_an_engine_does_not_check_them(
    kind: str, refused: int
) -> None:
    """SGLang asks whole blocks of queries, keys and values of all models but MiMo-V2."""
    decoder = replace(LARGE, model_type=kind)
    reported = refusals(decoder, Parallel(tp=4), SGLANG, {"attention": (256, 256)})
    assert len([refusal for refusal in reported if "outputs of" in refusal.reason]) == refused


def test_a_group_of_tensorrt_llm_is_one_rank() -> None:
    """Its attention is data parallel over all ranks or none; others, and dense models, may part."""
    two_groups = Parallel(tp=4, dp=2, ep=8)
    (refusal,) = refusals(LARGE, two_groups, TRTLLM, {})
    assert (refusal.key, "Give --tp 1 --dp 8" in refusal.remedy) == ("dp", True)
    assert not refusals(LARGE, Parallel(dp=8, ep=8), TRTLLM, {})
    assert not refusals(LARGE, Parallel(tp=4, ep=4), TRTLLM, {})
    for engine in (VLLM, SGLANG):
        assert not refusals(LARGE, two_groups, engine, {})
    dense = read_decoder(CONFIG / "models" / "qwen3_8b.json")
    assert not refusals(dense, Parallel(tp=4, dp=2), TRTLLM, {})


@pytest.mark.parametrize(
    ("degrees", "engine", "groups", "reasons"),
    [
        ({"tp": 3}, VLLM, {}, [("tp", "32 heads over 4"), ("tp", "151936 rows")]),
        ({"tp": 64}, VLLM, {}, [("tp", "32 heads")]),
        ({"tp": 8}, VLLM, BLOCKS, [("tp x dp / ep", "768, the width of an expert, in groups")]),
        ({"tp": 8, "ep": 2}, VLLM, {}, [("ep", "which vllm does not support")]),
        ({"tp": 8, "ep": 2}, SGLANG, {}, []),
        ({"dp": 256, "ep": 256}, VLLM, {}, [("ep", "more than the 128 experts")]),
        ({"dp": 3, "ep": 3}, SGLANG, {}, [("ep", "128 experts")]),
        ({"dp": 3, "ep": 3}, VLLM, {}, []),
        ({"pp": 49}, VLLM, {}, [("pp", "more than the 48 layers")]),
    ],
)  # fmt: skip
def test_what_no_engine_cuts_is_refused(
    degrees: dict[str, int], engine: Engine, groups: Any, reasons: list[tuple[str, str]]
) -> None:
    """Each reason is there, with the option it is about and the sizes that an engine takes."""
    reported = refusals(LARGE, Parallel(**degrees), engine, groups)
    assert len(reported) == len(reasons), reported
    for refusal, (key, reason) in zip(reported, reasons, strict=True):
        assert refusal.key == key
        assert reason in refusal.reason
        assert refusal.remedy


@pytest.mark.parametrize(
    ("degrees", "groups", "remedy"),
    [
        ({"tp": 8, "ep": 2}, {}, "Give 1 or 8, or --moe sglang"),
        ({"tp": 8, "ep": 4}, BLOCKS, "Give 8, or --moe sglang"),
        ({"tp": 8, "ep": 2}, BLOCKS, "Give 8"),
        ({"tp": 256, "ep": 2}, BLOCKS, "Give another tp"),
    ],
)
def test_degrees_that_are_named_are_taken(
    degrees: dict[str, int], groups: Any, remedy: str
) -> None:
    """An ep, or an engine, is named only if it cuts the experts into whole groups of weights."""
    parallel = Parallel(**degrees)
    found = refusals(LARGE, parallel, VLLM, groups)
    assert remedy in {refusal.remedy for refusal in found if refusal.key == "ep"}


def test_sizes_that_are_named_are_taken() -> None:
    """Each size that a refusal names has no refusal of its own."""
    (refusal,) = refusals(LARGE, Parallel(tp=8), VLLM, BLOCKS)
    sizes, _, alternative = refusal.remedy.partition("; or ")
    assert json.loads(f"[{sizes.partition(': ')[2]}]") == [1, 2, 3, 6]
    assert alternative.startswith("--ep 8,")
    for parallel in (Parallel(tp=1), Parallel(tp=2), Parallel(tp=8, ep=8)):
        assert not refusals(LARGE, parallel, VLLM, BLOCKS)


@given(st.integers(1, 300), st.integers(1, 64))
def test_the_first_ranks_have_most_experts(experts: int, ep: int) -> None:
    """The largest part of experts is no more than one above the mean."""
    assume(ep <= experts)
    assert experts / ep <= local_experts(experts, ep) < experts / ep + 1


def test_layer_inputs_that_tp_does_not_divide_are_refused(tmp_path: Path) -> None:
    """Their projection is cut by its outputs, which ranks must share evenly as vLLM asserts."""
    decoder = read_decoder(write(tmp_path, SMALL["gemma3n_text"]))  # 6 layers of 10 elements
    reasons = [str(each) for each in refusals(decoder, Parallel(tp=8), VLLM, {})]
    assert any("60, the outputs of the layer inputs' projection" in reason for reason in reasons)
    assert not refusals(decoder, Parallel(tp=4), VLLM, {})
