"""A real engine's forward for the rules: flags, paths, and where they change."""

import pytest
from msgspec import structs
from nearfree.derive.granularity.engine import (
    EngineRules,
    forward_of,
)
from nearfree.derive.granularity.resolve import Resolver
from nearfree.errors import ConfigError, EvidenceError
from nearfree.log.names import Layout

from derive.engines import SHAPE, SYSTEM_INFO, forward, loaded, matrix, rules, setting
from derive.questions import RESOLVER


def test_a_take_records_what_ran() -> None:
    """Matrices, repacking and system information come from the event, axes from the setting."""
    query = forward("q8_0", batch=4, context=1024, threads=2, repack=False)
    assert forward_of(setting(query), loaded(query)) == query


def test_changes_are_of_paths_and_numbers_of_passes() -> None:
    """Q8_0 takes another path from two rows on, and a pass more at each fifth; three rows do not.

    Tiles of two, three and four rows are one pass of one path.
    """
    engine_rules = rules("q8_0").changes(12)
    assert [(change.n, change.path, change.before, change.after) for change in engine_rules] == [
        (2, "sgemm", 1, 1),
        (5, "sgemm", 1, 2),
        (9, "sgemm", 2, 3),
    ]
    assert {change.weight for change in engine_rules} == {1.0}
    assert all("ggml/src/ggml-cpu/llamafile/sgemm.cpp:" in change.place for change in engine_rules)
    assert rules("q8_0").step_positions(9) == set(range(2, 10))


def test_rows_are_those_of_all_requests() -> None:
    """A forward over N positions of b requests has b N rows."""
    engine_rules = rules("q8_0", batch=4).changes(3)
    assert [(change.n, change.rows) for change in engine_rules] == [(2, 8), (3, 12)]


def test_each_type_changes_by_itself_and_the_heaviest_comes_first() -> None:
    """Weights are shares of the elements of all matrices."""
    engine_rules = rules("q4_1", "q8_0").first_changes(1, 33)
    assert [(name, change.n, change.path) for name, change in engine_rules.items()] == [
        ("mul_mat q4_1", 2, "vector"),
        ("mul_mat q8_0", 2, "sgemm"),
    ]
    assert [change.weight for change in engine_rules.values()] == pytest.approx([0.6, 0.4])


def test_weights_that_are_not_repacked_take_another_path() -> None:
    """Where the library has no repacked weights, the setting's `repack` does not matter."""
    without = SYSTEM_INFO.replace("REPACK = 1", "REPACK = 0")
    paths = [
        {change.path for change in rules("q4_k", **changes).changes(33)}
        for changes in ({}, {"repack": False}, {"system_info": without})
    ]
    assert paths[0] == {"repack_gemm", "repack_gemv"}
    assert paths[1] == paths[2] == {"vector"}


def test_what_is_not_read_is_refused_by_name(tmp_path) -> None:
    """Experts without a router, a path, an odd type, no matrices, a release without rules."""
    experts = forward(matrices=(matrix("q4_k", part="ffn_up_exps", routed=True),))
    for query, error, named in (
        (experts, EvidenceError, "ffn_up_exps.* fit routers of no experts"),
        (forward(system_info="CPU : AVX2 = 1 |"), EvidenceError, "LLAMAFILE"),
        (forward("tq1_0"), ConfigError, "tq1_0"),
        (forward(matrices=()), EvidenceError, "no matrices"),
        (forward(engine="torch"), EvidenceError, "torch"),
    ):
        with pytest.raises(error, match=named):
            EngineRules(query, RESOLVER)
    with pytest.raises(EvidenceError, match=r"rules extract llama-cpp==3\.22\.1"):
        EngineRules(forward(), Resolver(Layout(tmp_path)))


MOE = (
    matrix("q4_k", part="ffn_up_exps", rows=768, columns=2048, count=2 * 64, routed=True),
    matrix("f32", part="ffn_gate_inp", rows=64, columns=2048, count=2),
    matrix("q4_k", part="attn_q", rows=4096, columns=2048, count=2),
)
"""Two layers of 64 experts."""


def moe(matrices=MOE, top_k: int = 4, **changes) -> EngineRules:
    """Return the rules of a forward with experts."""
    shape = structs.replace(SHAPE, taken_experts=top_k)
    return EngineRules(forward(matrices=matrices, shape=shape, **changes), RESOLVER)


def test_experts_are_told_apart_from_dense_products() -> None:
    """A pass is over one expert's matrix in each layer; a token reads k of them."""
    experts, router, dense = moe().matrix_groups
    assert (experts.name, router.name, dense.name) == (
        "mul_mat_id q4_k", "mul_mat f32", "mul_mat q4_k",
    )  # fmt: skip
    assert (experts.elements, experts.used) == (2 * 768 * 2048, 4 * 2 * 768 * 2048)
    assert dense.elements == dense.used == 2 * 4096 * 2048
    assert sum(moe().share(group.name) for group in moe().matrix_groups) == pytest.approx(1.0)


def test_each_position_more_is_passes_of_experts_more() -> None:
    """Repacked experts take each of the k rows of a token by itself, so they limit at once."""
    changes = moe().first_changes(1, 33)
    assert changes["mul_mat_id q4_k"].n == 2
    assert (changes["mul_mat_id q4_k"].before, changes["mul_mat_id q4_k"].after) == pytest.approx(
        (4, 8)
    )
    assert "repack.cpp:" in changes["mul_mat_id q4_k"].place
    assert [change.n for change in moe().changes(5) if change.routed] == [2, 3, 4, 5]


@pytest.mark.parametrize(
    ("matrices", "top_k"),
    [
        (MOE, 65),
        ((*MOE, matrix("f32", part="ffn_gate_inp", rows=32, columns=2048, count=1)), 4),
        ((matrix("q4_k", part="ffn_up_exps", count=65, routed=True), *MOE[1:]), 4),
    ],
)
def test_experts_that_do_not_fit_a_router_are_refused(matrices, top_k: int) -> None:
    """More experts a token than there are, layers that differ, and an expert too many."""
    with pytest.raises(EvidenceError, match="do not fit routers of"):
        moe(matrices, top_k)
