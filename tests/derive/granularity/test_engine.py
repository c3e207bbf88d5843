"""A real engine's forward for the rules: flags, paths, and where they change."""

import pytest
from nearfree.derive.granularity.engine import (
    EngineRules,
    forward_of,
)
from nearfree.derive.granularity.resolve import Resolver
from nearfree.errors import ConfigError, EvidenceError
from nearfree.log.names import Layout

from derive.engines import SYSTEM_INFO, forward, loaded, matrix, rules, setting
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
    assert [(kind, change.n, change.path) for kind, change in engine_rules.items()] == [
        ("q4_1", 2, "vector"),
        ("q8_0", 2, "sgemm"),
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
    """Experts, a library without a path, an odd type, no matrices, and a release without rules."""
    experts = forward(matrices=(matrix("q4_k", part="ffn_up_exps", routed=True),))
    for query, error, named in (
        (experts, EvidenceError, "ffn_up_exps"),
        (forward(system_info="CPU : AVX2 = 1 |"), EvidenceError, "LLAMAFILE"),
        (forward("iq2_xxs"), ConfigError, "iq2_xxs"),
        (forward(matrices=()), EvidenceError, "no matrices"),
        (forward(engine="torch"), EvidenceError, "torch"),
    ):
        with pytest.raises(error, match=named):
            EngineRules(query, RESOLVER)
    with pytest.raises(EvidenceError, match=r"rules extract llama-cpp==3\.22\.1"):
        EngineRules(forward(), Resolver(Layout(tmp_path)))
