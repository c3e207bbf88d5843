"""Table `time_shares`: a model's time by module inside its forward."""

from pathlib import Path
from typing import Any

import polars as pl
import pytest
from conftest import make_plan
from hypothesis import given, settings
from hypothesis import strategies as st
from nearfree.config.model_studies import model_sweeps
from nearfree.core.setting import Setting
from nearfree.decoders.ranks.modules import ATTENTION, BETWEEN, HEAD, QKV
from nearfree.derive.tables.columns import ORIGINS
from nearfree.derive.tables.latency import LATENCY
from nearfree.derive.tables.project import project
from nearfree.derive.tables.store import read_table
from nearfree.derive.tables.time_shares import TIME_SHARES
from nearfree.log.events import Payload, SharesMeasured
from nearfree.log.names import Layout
from whole_models import curve, model_study, plan_of, small, write_events

MODEL = small()
SWEEPS = model_sweeps(model_study(batch=[1, 2]), MODEL)
SETTING = SWEEPS[0].setting
PARTS = {BETWEEN: 1.0, QKV: 2.0, ATTENTION: 3.0, HEAD: 4.0}


def shares(number: int = 0, n: int = 1, factor: float = 1.0, **changes: Any) -> SharesMeasured:
    """Return one watched forward, whose parts are PARTS times a factor."""
    fields: dict[str, Any] = {
        "setting": SETTING,
        "part_us": {role: us * factor for role, us in PARTS.items()},
        "dirty": False,
        "timer": "cpu",
    }
    return SharesMeasured(n=n, round=number, **(fields | changes))


def latencies(setting: Setting = SETTING, n: int = 1) -> list[Payload]:
    """Return the visits of a point that takes 7 microseconds."""
    return [*curve(setting, {n: (7.0, 7.0, 7.0)})]


def table(layout: Layout) -> pl.DataFrame:
    """Return the table that a log makes, checked against its schema and its ids."""
    project(layout, "cpu", {})
    return read_table(layout, "cpu", TIME_SHARES)


def made(layout: Layout, *payloads: Payload) -> pl.DataFrame:
    """Return the table of one take of a model."""
    write_events(layout, "small", plan_of(MODEL, SWEEPS), payloads)
    return table(layout)


def test_a_row_a_module(layout: Layout) -> None:
    """Each module has its time, its place in the forward, and its share of all of them."""
    table_rows = made(layout, *latencies(), *map(shares, range(3))).sort("place")
    assert table_rows.select("place", "role", "latency_us", "share").rows() == [
        (1, BETWEEN, 1.0, 0.1),
        (2, QKV, 2.0, 0.2),
        (3, ATTENTION, 3.0, 0.3),
        (4, HEAD, 4.0, 0.4),
    ]
    columns = (
        "platform",
        "stream",
        "take",
        "newest",
        "n",
        "baseline",
        "rounds",
        "model_us",
        "timer",
    )
    assert set(table_rows.select(columns).rows()) == {
        ("cpu", "small", 1, True, 1, 1, 3, 7.0, "cpu")
    }
    assert set(table_rows["origin"]) == {ORIGINS[0]}


PART = st.floats(0.001, 1e6)


@pytest.mark.slow
@settings(deadline=None, max_examples=10)
@given(st.lists(st.lists(PART, min_size=4, max_size=4), min_size=1, max_size=3))
def test_shares_sum_to_one(
    tmp_path_factory: pytest.TempPathFactory, rounds: list[list[float]]
) -> None:
    """Whatever was timed, the shares of a point are positive and their sum is one."""
    layout = Layout(Path(tmp_path_factory.mktemp("log")))
    watched = [
        shares(number, part_us=dict(zip(PARTS, parts, strict=True)))
        for number, parts in enumerate(rounds)
    ]
    table_rows = made(layout, *latencies(), *watched)
    assert table_rows["share"].sum() == pytest.approx(1.0)
    assert table_rows["share"].min() > 0  # type: ignore[operator]


def test_the_median_over_rounds_counts(layout: Layout) -> None:
    """A module's time is the median of its rounds, each module by itself."""
    factors = [1.0, 5.0, 2.0]
    table_rows = made(
        layout, *latencies(), *(shares(r, factor=factor) for r, factor in enumerate(factors))
    )
    assert dict(table_rows.select("role", "latency_us").rows()) == {
        r: 2 * us for r, us in PARTS.items()
    }


def test_disturbed_rounds_are_left_out(layout: Layout) -> None:
    """A round in which another process took the core does not count, in no module."""
    watched = [shares(0), shares(1, factor=9.0, dirty=True), shares(2, factor=3.0)]
    table_rows = made(layout, *latencies(), *watched)
    assert dict(table_rows.select("role", "latency_us").rows()) == {
        r: 2 * us for r, us in PARTS.items()
    }
    assert set(table_rows["rounds"]) == {2}
    assert {len(ids) for ids in table_rows["from_ids"].to_list()} == {2 + 1}


def test_disturbed_rounds_are_better_than_none(layout: Layout) -> None:
    """If every round was disturbed, all of them count."""
    table_rows = made(layout, *latencies(), *(shares(number, dirty=True) for number in range(3)))
    assert set(table_rows["rounds"]) == {3}
    assert dict(table_rows.select("role", "latency_us").rows()) == PARTS


def test_points_are_told_apart(layout: Layout) -> None:
    """Each setting and N has its own shares."""
    other = SWEEPS[1].setting
    payloads = [*latencies(), *curve(SETTING, {4: (7.0,) * 3}), *latencies(other)]
    watched = [shares(), shares(n=4, factor=2.0), shares(setting=other, factor=3.0)]
    table_rows = made(layout, *payloads, *watched).filter(role=QKV)
    assert set(table_rows.select("batch", "n", "latency_us").rows()) == {
        (1, 1, 2.0),
        (1, 4, 4.0),
        (2, 1, 6.0),
    }


def test_a_row_names_its_events_and_its_point(layout: Layout) -> None:
    """A row is made from the watched forwards and from the point's own latency."""
    table_rows = made(layout, *latencies(), *map(shares, range(3)))
    (point,) = read_table(layout, "cpu", LATENCY)["row_id"]
    for ids in table_rows["from_ids"].to_list():
        assert ids[-1] == point
        assert [event_id.partition("#")[0] for event_id in ids[:-1]] == [
            ids[0].partition("#")[0]
        ] * 3
        assert len(set(ids)) == 4


def test_what_was_watched_and_never_timed_is_left_out(layout: Layout) -> None:
    """Shares without a T(N) of the same take are left out."""
    assert made(layout, *latencies(), shares(n=2)).is_empty()


def test_the_newest_take_is_marked(layout: Layout) -> None:
    """Of two takes both are in the table, and the later one is the newest."""
    plan = plan_of(MODEL, SWEEPS)
    for take in (1, 2):
        write_events(layout, "small", plan, [*latencies(), shares(factor=take)], take)
    rows = table(layout).filter(role=QKV)
    assert set(rows.select("take", "newest", "latency_us").rows()) == {
        (1, False, 2.0),
        (2, True, 4.0),
    }


def test_a_log_without_models_has_an_empty_table(layout: Layout) -> None:
    """Where no model was measured the table is there, and empty."""
    setting = make_plan().sweeps[0].setting
    write_events(layout, "dense", make_plan(), curve(setting, {1: (5.0,) * 3}))
    assert table(layout).is_empty()
