"""The paper's law with counted granularity: each term by hand, and where it is silent."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from nearfree.config.model_studies import model_sweeps, uses
from nearfree.decoders.ranks.modules import ATTENTION, MOE
from nearfree.decoders.ranks.modules import DENSE as FFN
from nearfree.errors import EvidenceError
from nearfree.log.events import WorkCounted
from nearfree.preregister.composed import Composed, by_law
from whole_models import DENSE, LING, counted, model_study, small
from whole_models import MOE as MOE_MODEL

from preregister.apart import measured, modules_of, timed

Rows = dict[int, int | None]
"""Rows of a block by N."""
TILE: Rows = {1: 32, 2: 32, 4: 32, 8: 32}


def law(
    kind: str, attention: Rows, experts: Rows | None = None, *, rho: float = 20.0, **changes: Any
) -> Composed:
    """Return the law's boundary of a small model whose modules counted these rows of a block."""
    baseline = changes.pop("first", 1)
    modules = modules_of(kind, **changes)
    given_rows = {ATTENTION: attention, MOE: experts}
    events = [
        event for use in modules for event in counted(use.setting, given_rows.get(use.role) or {})
    ]
    return by_law(modules, measured(*events), baseline, rho)


@given(st.floats(1, 1000), st.integers(1, 16), st.integers(1, 512))
def test_a_dense_model(rho: float, batch: int, tile: int) -> None:
    """N = min(rho s / 2 b, M_attn), with s = 4 bytes, rounded down and at least the baseline."""
    boundary = law(DENSE, {1: tile}, rho=rho, batch=[batch])
    idle = rho * 4 / (2 * batch)
    assert boundary.n_max == max(1, int(min(idle, tile)))
    assert boundary.limiting_module == (FFN if (idle, FFN) < (tile, ATTENTION) else ATTENTION)
    assert boundary.low == boundary.high == boundary.n_max
    assert boundary.curve == {}


@pytest.mark.parametrize(
    ("rho", "role", "term", "margin"),
    [(20.0, ATTENTION, "M_attn = 32", 40 / 32), (10.0, FFN, "rho s / 2 b = 20", 32 / 20)],
)
def test_the_smaller_term_limits(rho: float, role: str, term: str, margin: float) -> None:
    """The smaller term is named with its value, and how far the other module's is from it."""
    boundary = law(DENSE, TILE, rho=rho)
    assert (boundary.limiting_module, boundary.limiting_term) == (role, term)
    assert boundary.margin == pytest.approx(margin)


@pytest.mark.parametrize(
    ("blocks", "batch", "positions"),
    [(None, 1, 16), (4, 1, 16), (8, 2, 16), (1, 1, 4), (2, 2, 4), (2, 1, 8)],
)
def test_positions_of_a_tile(blocks: int | None, batch: int, positions: int) -> None:
    """M_attn is the rows of all first tiles over heads and batch: packed heads share a tile.

    Four heads with one tile of 16 rows each hold 16 positions, and together in one tile four.
    """
    model = small(num_attention_heads=4, num_key_value_heads=1)
    modules = uses(model_sweeps(model_study(batch=[batch]), model)[0].setting, model)
    (use,) = (use for use in modules if use.role == ATTENTION)
    assert (use.setting.heads, use.setting.kv_heads) == (4, 1)
    first, later = counted(use.setting, {1: 16, 8: 64})
    first = replace(first, work=replace(first.work, blocks=blocks))
    boundary = by_law(modules, measured(later, first), 1, 1e6)
    assert (boundary.n_max, boundary.limiting_term) == (positions, f"M_attn = {positions}")


@given(st.integers(1, 64), st.integers(1, 8), st.integers(1, 16))
def test_balanced_experts(rows: int, batch: int, top_k: int) -> None:
    """N = M_moe E / (b k), where each expert has an equal part of b N k pairs."""
    boundary = law(
        MOE_MODEL,
        {1: 10**6},
        {1: rows, 2: rows},
        routing=["balanced"],
        batch=[batch],
        top_k=[top_k],
        positions=[1, 16, 32],
    )
    assert boundary.n_max == max(1, rows * 16 // (batch * top_k))
    assert boundary.limiting_term.startswith("M_moe E / (b k) = ")
    assert boundary.limiting_module == MOE


@given(st.integers(1, 64), st.integers(1, 8))
def test_skewed_experts(rows: int, batch: int) -> None:
    """N = M_moe / b, where all tokens go to the same experts, whatever k is."""
    axes = {"routing": ["skewed"], "batch": [batch]}
    n_max = {law(MOE_MODEL, {1: 10**6}, {1: rows}, top_k=[k], **axes).n_max for k in (1, 4, 16)}
    assert n_max == {max(1, rows // batch)}


def test_tau_is_where_the_block_changed() -> None:
    """The last N that ran with the first block is tau / b, and its term says which N that is."""
    changing: Rows = {1: 16, 4: 16, 8: 64, 16: 64}
    boundary = law(MOE_MODEL, {1: 32}, changing, routing=["balanced"], top_k=[4])
    assert (boundary.n_max, boundary.limiting_term) == (
        4,
        "tau / b, by the last N that was run with blocks of 16, = 4",
    )
    assert (boundary.limiting_module, boundary.margin) == (MOE, 8.0)


def test_a_change_of_the_block_is_told_of_tau_alone() -> None:
    """Where a later block changes, a smaller term is named as it is elsewhere."""
    boundary = law(MOE_MODEL, {1: 32}, {1: 2, 16: 2, 32: 64}, routing=["balanced"], top_k=[4])
    assert (boundary.n_max, boundary.limiting_term) == (8, "M_moe E / (b k) = 8")


def test_the_margin_is_to_the_nearest_of_the_others() -> None:
    """Of two terms of the module that does not limit the smaller one counts, not the first."""
    experts: Rows = {1: 16, 16: 16, 32: 64}
    boundary = law(MOE_MODEL, {1: 8}, experts, routing=["balanced"], top_k=[4])
    assert (boundary.limiting_module, boundary.n_max, boundary.margin) == (ATTENTION, 8, 16 / 8)


def test_a_module_alone_has_no_margin() -> None:
    """With a single module there is no second term, and so no margin."""
    (use,) = (use for use in modules_of() if use.role == ATTENTION)
    boundary = by_law([use], measured(*counted(use.setting, TILE)), 1, 20.0)
    assert (boundary.n_max, boundary.margin) == (32, None)


def test_only_the_first_change_is_tau() -> None:
    """Of a block that changes more than once, only the first change is tau."""
    changing: Rows = {1: 16, 2: 16, 4: 32, 8: 16, 16: 64}
    boundary = law(MOE_MODEL, {1: 32}, changing, routing=["balanced"])
    assert (boundary.n_max, boundary.limiting_term) == (
        2,
        "tau / b, by the last N that was run with blocks of 16, = 2",
    )


def test_an_experts_model_has_no_dense_term() -> None:
    """Dense FFNs of the first layers and shared experts are not what the law speaks of."""
    boundary = law(LING, {1: 64}, {1: 16}, rho=1e-6, routing=["skewed"])
    assert (boundary.n_max, boundary.limiting_module) == (16, MOE)


def test_the_baseline_is_the_least() -> None:
    """What is smaller than the baseline is the baseline: ratios begin there."""
    axes = {"routing": ["skewed"], "batch": [4]}
    assert law(MOE_MODEL, {1: 64}, {1: 4}, first=3, **axes).n_max == 3


def test_latency_does_not_matter() -> None:
    """The law has no time in it: other curves of the same modules change nothing."""
    modules = modules_of(DENSE)
    counts: list[WorkCounted] = [
        event for use in modules if use.role == ATTENTION for event in counted(use.setting, TILE)
    ]
    slow, fast = (
        by_law(modules, timed(modules, lambda _, n, factor=factor: factor * n, *counts), 1, 20.0)
        for factor in (1.0, 1000.0)
    )
    assert slow == fast


@pytest.mark.parametrize(
    ("attention", "experts", "role"),
    [({}, {1: 16}, ATTENTION), ({1: None}, {1: 16}, ATTENTION), ({1: 32}, {1: None}, MOE)],
)
def test_what_counted_no_block_is_named(attention: Rows, experts: Rows, role: str) -> None:
    """A kernel without a granularity gives no law, and the refusal names the module."""
    with pytest.raises(EvidenceError, match=f"the run of {role} counted no block or tile"):
        law(MOE_MODEL, attention, experts)
