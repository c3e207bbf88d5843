"""The collectives of a forward: which there are, how often, and what they send."""

from pathlib import Path

import pytest
from msgspec.structs import replace
from nearfree.backends.names import BackendRelease, backend
from nearfree.core.modules.collective import WITH_NORM, sent_bytes
from nearfree.core.parallel import ONE_GPU, Parallel
from nearfree.core.precision import Dtype
from nearfree.decoders.config_file import read_decoder
from nearfree.decoders.decoder import Decoder, Experts
from nearfree.decoders.ranks.collectives import (
    ATTENTION_SUM,
    COMBINE,
    DISPATCH,
    EMBEDDING_SUM,
    FAR_STAGE,
    FFN_SUM,
    KEYS,
    LOGITS,
    MOE_SUM,
    QUERIES,
    REGATHER,
    STAGE,
    STAGE_GATHER,
    collectives,
)
from nearfree.decoders.ranks.modules import ModuleUse
from nearfree.errors import ConfigError

from decoders.files import change, write

VLLM = BackendRelease("vllm", "0.24.0")
DENSE = Decoder(
    name="dense", model_type="llama", dtype="bfloat16", d_model=64, layers=5, vocabulary=1000,
    heads=8, kv_heads=4, head_dim=8, d_ff=128,
)  # fmt: skip
SPARSE = Decoder(
    name="sparse", model_type="qwen3_moe", dtype="bfloat16", d_model=64, layers=5, vocabulary=1000,
    heads=8, kv_heads=4, head_dim=8, d_ff=128, moe_layers=4,
    experts=Experts(experts=16, top_k=2, d_ff=32),
)  # fmt: skip


def collectives_by_role(
    uses: tuple[ModuleUse, ...],
) -> dict[str, tuple[int, str | None, int | None, int]]:
    """Return how often each runs, its operation, ranks and requests, by role."""
    return {
        use.role: (use.count, use.setting.operation, use.setting.gpus, use.setting.batch)
        for use in uses
    }


def test_one_gpu_has_none() -> None:
    """On one GPU nothing is sent."""
    assert collectives(SPARSE, ONE_GPU, batch=3, engine=VLLM) == ()


def test_tensor_parallel() -> None:
    """Two all-reduces a layer, one of the cut embedding, and one gather of the cut logits."""
    uses = collectives(DENSE, Parallel(tp=4), batch=3, engine=VLLM)
    assert collectives_by_role(uses) == {
        EMBEDDING_SUM: (1, "all_reduce", 4, 3),
        ATTENTION_SUM: (5, "all_reduce", 4, 3),
        FFN_SUM: (5, "all_reduce", 4, 3),
        LOGITS: (1, "all_gather", 4, 3),
    }
    assert {use.setting.backend for use in uses} == {"vllm", "nccl"}
    assert sent_bytes(uses[-1].setting, 2) == 3 * 2 * 1000 * 2 * 3 // 4


@pytest.mark.parametrize(
    ("engine", "parallel", "model_type", "fused"),
    [
        ("vllm==0.16.0", Parallel(tp=4), "llama", False),
        ("vllm==0.17.0", Parallel(tp=4), "llama", True),
        ("vllm==0.17.0", Parallel(tp=4, dp=2), "llama", False),
        ("vllm==0.21.0", Parallel(tp=4, dp=2), "llama", True),
        ("vllm==0.23.0", Parallel(tp=4, pp=2), "llama", False),
        ("vllm==0.24.0", Parallel(tp=4, pp=2), "llama", True),
        ("vllm", Parallel(tp=4), "llama", True),
        ("vllm", Parallel(tp=4), "starcoder2", False),
        ("sglang==0.5.9", Parallel(tp=4), "qwen3_moe", True),
        ("sglang==0.5.6", Parallel(tp=4), "qwen3_moe", False),
        ("sglang==0.5.9", Parallel(tp=4, dp=2), "qwen3_moe", False),
        ("sglang", Parallel(tp=4), "llama", False),
        ("trtllm", Parallel(tp=4), "llama", False),
    ],
)
def test_sums_are_fused_with_the_norms_after_them(
    *, engine: str, parallel: Parallel, model_type: str, fused: bool
) -> None:
    """Release, degrees and model decide whether a layer's sums are; the embedding's sum is not."""
    model = replace(DENSE, model_type=model_type)
    uses = collectives(model, parallel, batch=1, engine=backend(engine))
    calls = {use.role: use.setting.api for use in uses}
    assert calls[EMBEDDING_SUM] is None
    assert {calls[ATTENTION_SUM], calls[FFN_SUM]} == {WITH_NORM if fused else None}


def test_experts_over_ranks_of_the_same_rows() -> None:
    """Without data parallel attention experts are summed up, however they are spread."""
    for ep in (1, 4):
        by_role = collectives_by_role(
            collectives(SPARSE, Parallel(tp=4, ep=ep), batch=3, engine=VLLM)
        )
        assert by_role[MOE_SUM] == (4, "all_reduce", 4, 3)
        assert by_role[FFN_SUM][0] == 1


def test_granite_sums_what_every_token_passes_apart(tmp_path: Path) -> None:
    """Its Dense FFN is none of the experts' shared ones: each layer has three sums, two without.

    vllm 0.33.0, vllm/model_executor/models/granitemoehybrid.py, and granitemoeshared.py.
    """
    for changes, sums in (({}, {MOE_SUM: 6}), ({"num_local_experts": 0}, {})):
        decoder = read_decoder(write(tmp_path, change("granitemoehybrid", **changes)))
        by_role = collectives_by_role(collectives(decoder, Parallel(tp=2), batch=1, engine=VLLM))
        counts = {role: use[0] for role, use in by_role.items() if role in (FFN_SUM, MOE_SUM)}
        assert counts == {FFN_SUM: 6, **sums}
        assert by_role[ATTENTION_SUM][0] == 6


@pytest.mark.parametrize(
    ("kind", "changes", "release", "attends"),
    [
        ("falcon", {}, "vllm==0.8.0", 0),
        ("gptj", {}, "vllm==0.33.0", 6),
        ("cohere2", {}, "vllm==0.28.0", 6),
        ("cohere2", {}, "vllm==0.29.0", 0),
        ("cohere", {}, "vllm", 0),
        ("cohere2", {}, "sglang==0.5.23", 6),
        ("cohere2_moe", {}, "vllm==0.32.0", 6),
        ("cohere2_moe", {}, "vllm==0.33.0", 0),
        ("cohere2_moe", {"num_shared_experts": 1}, "vllm==0.33.0", 5),
        ("cohere2_moe", {"num_shared_experts": 1}, "sglang==0.5.23", 0),
        ("qwen3", {}, "vllm==0.33.0", 6),
    ],
)
def test_attention_and_ffn_beside_each_other_are_summed_at_once(
    tmp_path: Path, kind: str, changes: dict[str, int], release: str, attends: int
) -> None:
    """Of Cohere's layers newer engines add up both before one all-reduce, not of shared experts.

    vllm/model_executor/models/commandr.py and cohere2_moe.py of the releases.
    """
    decoder = read_decoder(write(tmp_path, change(kind, **changes)))
    name, _, version = release.partition("==")
    engine = BackendRelease(name, version or None)
    by_role = collectives_by_role(collectives(decoder, Parallel(tp=2), batch=3, engine=engine))
    assert by_role.get(ATTENTION_SUM, (0,))[0] == attends
    assert by_role[FFN_SUM][0] == decoder.dense_layers
    assert by_role.get(MOE_SUM, (0,))[0] == decoder.moe_layers


@pytest.mark.parametrize(
    ("kind", "engine", "gathers"),
    [
        ("olmo2", "vllm", True),
        ("olmo3", "sglang", True),
        ("olmoe", "vllm", True),
        ("olmoe", "sglang", False),
        ("qwen3", "vllm", False),
    ],
)
def test_queries_and_keys_are_gathered_for_a_norm_of_all_heads(
    tmp_path: Path,
    kind: str,
    engine: str,
    gathers: bool,  # noqa: FBT001
) -> None:
    """Olmo's norms are as wide as all heads: each layer gathers queries, then keys."""
    decoder = read_decoder(write(tmp_path, change(kind)))
    uses = collectives(decoder, Parallel(tp=2), batch=3, engine=BackendRelease(engine, "0.5.23"))
    widths = {
        use.role: (use.count, use.setting.operation, use.setting.d_model)
        for use in uses
        if use.role in (QUERIES, KEYS)
    }
    width = decoder.head_dim
    expected = {
        QUERIES: (decoder.layers, "all_gather", decoder.heads * width),
        KEYS: (decoder.layers, "all_gather", decoder.kv_heads * width),
    }
    assert widths == (expected if gathers else {})


def test_data_parallel_attention_gathers_all_rows() -> None:
    """With ep the rows of all groups reach all ranks, and a rank's group gathers its own."""
    parallel = Parallel(tp=2, dp=4, ep=8)
    by_role = collectives_by_role(collectives(SPARSE, parallel, batch=3, engine=VLLM))
    assert by_role[DISPATCH] == (4, "all_gather", 8, 12)
    assert by_role[COMBINE] == (4, "reduce_scatter", 8, 12)
    assert by_role[REGATHER] == (4, "all_gather", 2, 3)
    assert MOE_SUM not in by_role
    by_role_of_dp = collectives_by_role(
        collectives(SPARSE, Parallel(dp=4, ep=4), batch=3, engine=VLLM)
    )
    assert sorted(by_role_of_dp) == sorted([DISPATCH, COMBINE])
    assert collectives(DENSE, Parallel(dp=4), batch=3, engine=VLLM) == ()


@pytest.mark.parametrize(
    ("kind", "ep", "pp", "parted"),
    [
        ("deepseek_v3", 8, 1, True), ("deepseek_v3", 8, 2, True), ("deepseek_v3", 1, 1, False),
        ("axk1", 8, 1, True), ("glm4_moe", 8, 1, False), ("deepseek_v4", 8, 1, True),
        ("deepseek_v4", 8, 2, False),
    ],
)  # fmt: skip
def test_rows_of_a_group_are_parted_where_experts_are_whole(
    kind: str, ep: int, pp: int, *, parted: bool
) -> None:
    """Where vLLM does not part them groups exchange rows, and each sums up what its ranks add."""
    decoder, parallel = replace(SPARSE, model_type=kind), Parallel(tp=4, dp=2, ep=ep, pp=pp)
    by_role = collectives_by_role(collectives(decoder, parallel, batch=3, engine=VLLM))
    gpus = 8 if parted else 2
    assert by_role[DISPATCH] == (4, "all_gather", gpus, 6)
    assert by_role[COMBINE] == (4, "reduce_scatter", gpus, 6)
    assert (REGATHER in by_role, MOE_SUM in by_role) == (parted, not parted)
    assert parted or by_role[MOE_SUM] == (4, "all_reduce", 4, 3)
    sglang = collectives_by_role(
        collectives(decoder, parallel, batch=3, engine=BackendRelease("sglang"))
    )
    assert sglang[DISPATCH] == (4, "all_gather", 8, 6)


def test_what_groups_of_deepseek_v3_send() -> None:
    """Without ep each of two groups sends the other its 32 rows, and sums the rows that arrive."""
    decoder = replace(SPARSE, model_type="deepseek_v3", d_model=7168)
    uses = collectives(decoder, Parallel(tp=4, dp=2), batch=32, engine=VLLM)
    bytes_sent = {use.role: sent_bytes(use.setting, 1) for use in uses}
    assert (bytes_sent[DISPATCH], bytes_sent[COMBINE], bytes_sent[MOE_SUM]) == (
        458_752,
        458_752,
        688_128,
    )


@pytest.mark.parametrize(("row_dtype", "share"), [("float8", 1 / 2), ("nvfp4", 9 / 32), (None, 1)])
def test_rounded_rows_are_fewer_bytes(row_dtype: Dtype | None, share: float) -> None:
    """Rows that are rounded before they are sent to experts come back in 16 bits."""
    uses = collectives(SPARSE, Parallel(dp=2), batch=8, engine=VLLM, sent=row_dtype)
    bytes_sent = {use.role: sent_bytes(use.setting, 1) for use in uses}
    assert bytes_sent[COMBINE] == 8 * 64 * 2
    assert bytes_sent[DISPATCH] == share * 8 * 64 * 2


def test_stages_send_to_the_next() -> None:
    """Each of pp - 1 stages sends hidden states and residual, a rank its part of them."""
    by_role = {use.role: use for use in collectives(DENSE, Parallel(tp=2, pp=3), batch=1,
                                                  engine=VLLM)}  # fmt: skip
    assert (by_role[STAGE].count, by_role[STAGE].setting.d_model) == (2, 64)
    assert (by_role[STAGE_GATHER].count, by_role[STAGE_GATHER].setting.d_model) == (2, 128)
    assert sent_bytes(by_role[STAGE].setting, 1) == 64 * 2


def test_an_engine_that_is_not_known_is_refused() -> None:
    """What serves no model runs no collectives, and the message names what does."""
    with pytest.raises(ConfigError, match=r"torch runs no collective.*vllm, sglang, trtllm"):
        collectives(SPARSE, Parallel(tp=4), batch=1, engine=BackendRelease("torch"))


def test_hops_between_nodes_are_distinguished() -> None:
    """Hops from stage to stage by where they lead, and over how many nodes rows are gathered."""

    def nodes(engine: str, **degrees: int) -> dict[str, tuple[int, int | None]]:
        release = BackendRelease(engine, "1.0")
        uses = collectives(SPARSE, Parallel(**degrees), batch=3, engine=release, node_gpus=8)
        return {use.role: (use.count, use.nodes) for use in uses}

    four_stages = nodes("vllm", tp=4, pp=4)
    assert (four_stages[STAGE], four_stages[FAR_STAGE]) == ((2, 1), (1, 2))
    assert four_stages[STAGE_GATHER] == (3, None)
    assert STAGE not in nodes("vllm", tp=8, pp=2)
    assert FAR_STAGE not in nodes("vllm", tp=4, pp=2)
    for engine, of_rows in (("vllm", 2), ("sglang", 1)):
        two_groups = nodes(engine, tp=4, dp=2, pp=2)
        assert two_groups[DISPATCH] == two_groups[COMBINE] == (4, of_rows)
        assert (FAR_STAGE in two_groups) == (engine == "sglang")
    in_one = collectives(SPARSE, Parallel(tp=8, pp=2), batch=3, engine=VLLM)
    assert FAR_STAGE not in collectives_by_role(in_one)


@pytest.mark.parametrize(
    ("kind", "degrees", "fewest"),
    [
        ("qwen3_moe", {"tp": 4, "dp": 3, "ep": 12}, 4),
        ("mixtral", {"tp": 4, "dp": 3, "ep": 12}, 1),
        ("mixtral", {"dp": 9, "ep": 9}, 1),
        ("mixtral", {"dp": 8, "ep": 8}, None),
    ],
)
def test_gathers_have_the_ranks_of_the_last_node(
    kind: str, degrees: dict[str, int], fewest: int | None
) -> None:
    """Of those that exchange rows: all of a node, or of each of its groups the one of a place."""
    deployment = {"batch": 1, "engine": VLLM, "node_gpus": 8}
    uses = collectives(replace(SPARSE, model_type=kind), Parallel(**degrees), **deployment)
    fewest_of_uses = {use.fewest for use in uses if use.role in (DISPATCH, COMBINE)}
    assert fewest_of_uses == {fewest}
