"""The collectives of a forward: which there are, how often, and what they send."""

import pytest
from nearfree.backends.names import BackendRelease
from nearfree.core.parallel import ALONE, Parallel
from nearfree.decoders.collectives import (
    ATTENTION_SUM,
    COMBINE,
    DISPATCH,
    EMBEDDING_SUM,
    FFN_SUM,
    LOGITS,
    MOE_SUM,
    REGATHER,
    STAGE,
    STAGE_GATHER,
    collectives,
    sends,
)
from nearfree.decoders.decoder import Decoder, Experts
from nearfree.decoders.modules import ModuleUse
from nearfree.errors import ConfigError

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


def told(uses: tuple[ModuleUse, ...]) -> dict[str, tuple[int, str | None, int | None, int]]:
    """Return how often each runs, its operation, ranks and requests, by role."""
    return {
        use.role: (use.count, use.setting.operation, use.setting.gpus, use.setting.batch)
        for use in uses
    }


def test_one_gpu_has_none() -> None:
    """On one GPU nothing is sent."""
    assert collectives(SPARSE, ALONE, batch=3, engine=VLLM) == ()


def test_tensor_parallel() -> None:
    """Two all-reduces a layer, one of the cut embedding, and one gather of the cut logits."""
    found = collectives(DENSE, Parallel(tp=4), batch=3, engine=VLLM)
    assert told(found) == {
        EMBEDDING_SUM: (1, "all_reduce", 4, 3),
        ATTENTION_SUM: (5, "all_reduce", 4, 3),
        FFN_SUM: (5, "all_reduce", 4, 3),
        LOGITS: (1, "all_gather", 4, 3),
    }
    assert {use.setting.backend for use in found} == {"vllm", "nccl"}
    assert sends(found[-1], 2) == {"rank": None, "bytes_sent": 3 * 2 * 1000 * 2 * 3 // 4}


def test_experts_over_ranks_of_the_same_rows() -> None:
    """Without data parallel attention experts are summed up, however they are spread."""
    for ep in (1, 4):
        found = told(collectives(SPARSE, Parallel(tp=4, ep=ep), batch=3, engine=VLLM))
        assert found[MOE_SUM] == (4, "all_reduce", 4, 3)
        assert found[FFN_SUM][0] == 1


def test_data_parallel_attention_gathers_all_rows() -> None:
    """The rows of all groups reach all ranks, and a rank's group gathers its own."""
    parallel = Parallel(tp=2, dp=4, ep=8)
    found = told(collectives(SPARSE, parallel, batch=3, engine=VLLM))
    assert found[DISPATCH] == (4, "all_gather", 8, 12)
    assert found[COMBINE] == (4, "reduce_scatter", 8, 12)
    assert found[REGATHER] == (4, "all_gather", 2, 3)
    assert MOE_SUM not in found
    alone = told(collectives(SPARSE, Parallel(dp=4, ep=4), batch=3, engine=VLLM))
    assert sorted(alone) == sorted([DISPATCH, COMBINE])
    assert collectives(DENSE, Parallel(dp=4), batch=3, engine=VLLM) == ()


def test_stages_send_to_the_next() -> None:
    """Each of pp - 1 stages sends hidden states and residual, a rank its part of them."""
    found = {use.role: use for use in collectives(DENSE, Parallel(tp=2, pp=3), batch=1,
                                                  engine=VLLM)}  # fmt: skip
    assert (found[STAGE].count, found[STAGE].setting.d_model) == (2, 64)
    assert (found[STAGE_GATHER].count, found[STAGE_GATHER].setting.d_model) == (2, 128)
    assert sends(found[STAGE], 1)["bytes_sent"] == 64 * 2


def test_an_engine_that_is_not_known_is_refused() -> None:
    """What serves no model runs no collectives, and the message names what does."""
    with pytest.raises(ConfigError, match=r"torch runs no collective.*vllm, sglang, trtllm"):
        collectives(SPARSE, Parallel(tp=4), batch=1, engine=BackendRelease("torch"))
