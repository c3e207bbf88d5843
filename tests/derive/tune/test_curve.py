"""T(N) of an engine's setting, from its visits."""

from types import SimpleNamespace
from typing import Any

import pytest
from conftest import make_setting
from msgspec.structs import replace
from nearfree.core.drafting import Drafting, Steps
from nearfree.core.protocols import Thinned
from nearfree.derive.tune.curve import EngineCurve, engine_curve, of_batch
from nearfree.derive.tune.replayed import Cost
from nearfree.errors import EvidenceError
from nearfree.log.curves import Curve, Visits
from nearfree.log.events import LatencyMeasured


def visit(place: int, n: int, *, dirty: bool) -> Any:
    """Return a visit with one thread, whose wall time is twice its CPU time if disturbed."""
    us = 100.0 * n
    data = LatencyMeasured(
        setting=replace(make_setting(), threads=1), n=n, baseline=1, round=place // 2, order=0,
        wall_us=(us * (2 if dirty else 1),), process_us=(us,), dirty=(dirty,), cache="cold",
        protocol=Thinned(retries=0), round_points=2,
    )  # fmt: skip
    source, number = "cpu/s/1-00000000.1", str(place + 1)
    return SimpleNamespace(data=data, source=source, id=number, event_id=f"{source}#{number}")


def curve_of(events: list[Any]) -> Curve:
    """Return the visits of a take as a curve."""
    take: Any = None
    visits: dict[int, Visits] = {}
    for event in events:
        visits.setdefault(event.data.n, Visits()).add(event)
    return Curve(take, events[0], visits)


def priced(*points: tuple[int, float], batch: int = 1, threads: int = 1) -> EngineCurve:
    """Return a curve through points of N and T."""
    n, us = zip(*points, strict=True)
    setting = replace(make_setting(), threads=threads, batch=batch)
    return EngineCurve(setting=setting, timer="wall", n=n, t_us=us, low_us=us, high_us=us,
                       ids=(f"{batch}-{threads}",))  # fmt: skip


def test_a_change_of_n_costs_what_the_first_forward_took_longer() -> None:
    """It is the median over the visits that timed such a forward, and never below zero."""
    visits = [visit(place, n, dirty=False) for place, n in enumerate((1, 2, 4, 1, 2, 4))]
    assert engine_curve(curve_of(visits)).change_us == 0.0
    for extra_us, expected_us in (((5.0, 40.0, 7.0), 7.0), ((-5.0, -1.0), 0.0)):
        timed = [
            SimpleNamespace(
                **vars(event) | {"data": replace(event.data, changed_us=event.data.wall_us[0] + us)}
            )
            for event, us in zip(visits, extra_us, strict=False)
        ]
        timed += visits[len(extra_us) :]
        assert engine_curve(curve_of(timed)).change_us == pytest.approx(expected_us)


@pytest.mark.parametrize(
    ("rows", "changes"),
    [((), 0), ((5,), 1), ((5, 5, 5), 1), ((5, 5, 3), 2), ((5, 1, 5, 1), 4)],
)
def test_steps_take_longer_where_their_rows_change(rows: tuple[int, ...], changes: int) -> None:
    """The first step follows the prompt's forward, so its rows are new as well."""
    plain = priced(*((n, 100.0 * n) for n in range(1, 6)))
    changing = replace(plain, change_us=7.0)
    steps, drafting = Steps(rows=rows, accepted=tuple(0 for _ in rows)), plain.undrafted
    (without_s,), (with_s,) = (
        Cost(curves=[curve]).seconds([steps], drafting) for curve in (plain, changing)
    )
    assert without_s == pytest.approx(1e-4 * sum(rows))
    assert with_s - without_s == pytest.approx(7e-6 * changes)


def test_a_draft_models_forwards_change_their_rows_too() -> None:
    """Its forwards have one row, or two after all its drafts were accepted."""
    drafting = Drafting(drafter="draft_model", k=2, repack=False)
    steps = Steps(rows=(3, 3, 3), accepted=(2, 0, 2))  # 1, 1; 2, 1; 1, 1 rows
    curves = [priced(*((n, 100.0 * n) for n in range(1, 4)))]
    draft = priced((1, 10.0), (2, 10.0))
    draft = replace(draft, setting=replace(draft.setting, repack=True))
    seconds = [
        Cost(curves=curves, draft=[replace(draft, change_us=us)]).seconds([steps], drafting)[0]
        for us in (0.0, 3.0)
    ]
    assert seconds[1] - seconds[0] == pytest.approx(3 * 3e-6)  # 1 after the prompt, 2, 1


def test_between_two_points_t_lies_on_their_line() -> None:
    """Between measured N, T is interpolated; outside the grid it is unknown."""
    curve = priced((2, 100.0), (4, 160.0), (8, 200.0))
    assert [curve.at(rows) for rows in (2, 3, 4, 5, 7, 8)] == [100, 130, 160, 170, 190, 200]
    for rows in (1, 9):
        with pytest.raises(EvidenceError, match=f"from N = 2 to 8, and N = {rows} is asked"):
            curve.at(rows)


def test_the_rows_of_all_sequences_of_a_batch_count_together() -> None:
    """Three sequences at N = 2 have six rows; fewer rows than sequences count as one sequence."""
    alone = priced((1, 50.0), (2, 70.0), (3, 80.0), (8, 90.0))
    others = priced((1, 60.0), (2, 70.0), threads=2)
    batch, lone = priced((1, 90.0), (2, 150.0), batch=3), priced((1, 9.0), batch=3, threads=4)
    curve, unpriced = of_batch([alone, others, batch, lone], 3)
    assert unpriced == lone, "without one sequence's curve of its threads"
    assert (curve.few, curve.ids) == (((1, 50.0), (2, 70.0)), ("1-1", "3-1"))
    assert [curve.at(rows) for rows in (1, 2, 3, 4, 6)] == [50, 70, 90, 110, 150]
    assert of_batch([alone, others, batch, lone], 1) == [alone, others]


def test_drafts_end_best_where_a_row_costs_less_than_before() -> None:
    """Edges are the rows at which a row costs less than at all fewer rows."""
    curve = priced((1, 40.0), (2, 60.0), (3, 90.0), (4, 100.0), (8, 200.0), (16, 320.0))
    assert curve.edges == (1, 2, 4, 16)


def test_n_rise_however_they_were_visited() -> None:
    """A curve has its N sorted, for any order of visits."""
    events = [visit(place, n, dirty=False) for place, n in enumerate((8, 1, 4, 8, 1, 4))]
    assert engine_curve(curve_of(events)).n == (1, 4, 8)


def test_a_long_forward_that_was_always_disturbed_is_not_missing() -> None:
    """An N without clean samples uses its CPU time."""
    events = [visit(2 * number, 1, dirty=False) for number in range(4)]
    events += [visit(1, 49, dirty=True), visit(3, 49, dirty=True)]
    curve = engine_curve(curve_of(events))
    assert curve.timer == "wall"
    assert curve.n == (1, 49)
    assert curve.t_us == (100.0, 4900.0)
