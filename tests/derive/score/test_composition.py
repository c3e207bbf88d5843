"""Table `composition`: composed boundaries of a model against the measured one."""

from typing import Any

import polars as pl
import pytest
from msgspec import structs
from nearfree.core.plan import plan_digest
from nearfree.decoders.ranks.modules import ATTENTION, BETWEEN, DENSE, HEAD
from nearfree.derive.predict.predictions import PREDICTIONS
from nearfree.derive.score.composition import COMPOSITION, compose
from nearfree.derive.score.validation import VALIDATION, validate
from nearfree.derive.tables.boundaries import BOUNDARIES
from nearfree.derive.tables.time_shares import TIME_SHARES
from nearfree.log.evidence import read_scope
from nearfree.log.names import Layout
from whole_models import write_events

from derive.modelled import (
    PARTS,
    SETTING,
    T,
    made,
    plan,
    predicted_payload,
    record_predictions,
    write_model,
    write_tables,
)
from derive.tables.logs import make_visits, write_probe, write_study

Row = dict[str, Any]


def row(layout: Layout, *payloads: Any) -> Row:
    """Return the row of the sum of modules, given its prediction first."""
    table_rows = made(layout, *payloads)(COMPOSITION).filter(predictor="modules_sum")
    return table_rows.row(0, named=True)


def test_the_measured_limiter_grew_most(layout: Layout) -> None:
    """Up to the N after the boundary attention grew by 15 of 30; the FFN only grew later."""
    composition_row = row(layout)
    assert (composition_row["n_max"], composition_row["next_n"]) == (2, 4)
    assert (composition_row["measured_limiter"], composition_row["measured_growth"]) == (
        ATTENTION,
        0.5,
    )


def test_at_the_grids_end_all_growth_counts(layout: Layout) -> None:
    """Without an N after the boundary, growth is from the baseline to the last N."""
    write_probe(layout)
    record_predictions(layout)
    write_model(layout, times=dict.fromkeys(T, 100.0))
    (rows,) = write_tables(layout)(COMPOSITION).filter(predictor="modules_sum").to_dicts()
    assert (rows["n_max"], rows["next_n"]) == (8, None)
    assert rows["measured_limiter"] == DENSE
    assert rows["measured_growth"] == pytest.approx(53 / 100)


def watched(layout: Layout, parts: dict[int, dict[str, float]]) -> Row:
    """Return the row of a model whose modules took these times."""
    write_probe(layout)
    record_predictions(layout)
    write_model(layout, parts=parts)
    (rows,) = write_tables(layout)(COMPOSITION).filter(predictor="modules_sum").to_dicts()
    return rows


def test_between_is_no_limiter(layout: Layout) -> None:
    """The time between modules is never the limiter, but counts as growth."""
    parts = {n: {BETWEEN: us, **PARTS[n]} for n, us in ((1, 10.0), (4, 70.0))}
    composition_row = watched(layout, parts)
    assert (composition_row["measured_limiter"], composition_row["measured_growth"]) == (
        ATTENTION,
        15 / 90,
    )


def test_what_shrinks_is_no_growth(layout: Layout) -> None:
    """A module's part is of the growth of those that grew."""
    composition_row = watched(layout, PARTS | {4: PARTS[4] | {DENSE: 20.0}})
    assert (composition_row["measured_limiter"], composition_row["measured_growth"]) == (
        ATTENTION,
        15 / 27,
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("parts", "limiter", "growth"),
    [
        ({}, None, None),
        ({1: PARTS[1]}, None, None),
        ({4: PARTS[4], 2: PARTS[2]}, None, None),
        ({1: PARTS[1], 4: {role: us / 2 for role, us in PARTS[1].items()}}, HEAD, None),
        ({1: {DENSE: 40.0}, 4: PARTS[4]}, DENSE, 1.0),
    ],
    ids=["nothing", "no N after", "no baseline", "all shrink", "new modules"],
)
def test_what_was_not_watched_has_no_limiter(
    layout: Layout, parts: dict[int, dict[str, float]], limiter: str | None, growth: float | None
) -> None:
    """Without shares at the baseline and the next N there is no limiter."""
    composition_row = watched(layout, parts)
    assert (composition_row["measured_limiter"], composition_row["measured_growth"]) == (
        limiter,
        growth,
    )


def test_the_predicted_limiter_is_held_against_it(layout: Layout) -> None:
    """A predicted limiter is compared with the measured one."""
    payloads = [
        predicted_payload(),
        predicted_payload("modules_minimum", limiting_module=DENSE),
        predicted_payload("principle_counted", None, basis="probed_gemm"),
    ]
    rows = made(layout, *payloads)(COMPOSITION).to_dicts()
    by_predictor = {row["predictor"]: row for row in rows if row["predictor"] in
             ("modules_sum", "modules_minimum", "principle_counted")}  # fmt: skip
    named = {name: (item["limiter"], item["same_limiter"], item["limiter_share"])
             for name, item in by_predictor.items()}  # fmt: skip
    assert named == {
        "modules_sum": (ATTENTION, True, 0.3),
        "modules_minimum": (DENSE, False, 0.4),
        "principle_counted": (None, None, None),
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    ("n_max", "hit", "within"),
    [(1.99, False, False), (2.0, True, True), (3.9, True, False), (4.0, False, False)],
)
def test_hits_and_intervals(layout: Layout, n_max: float, *, hit: bool, within: bool) -> None:
    """A hit lies in [N_max, next N); within means inside N_max's measured interval."""
    composition_row = row(layout, predicted_payload(n_max=n_max))
    assert (composition_row["n_low"], composition_row["n_high"]) == (2, 2)
    assert (composition_row["predicted"], composition_row["hit"], composition_row["within"]) == (
        n_max,
        hit,
        within,
    )


def test_the_interval_s_width_is_a_column(layout: Layout) -> None:
    """A prediction within [2, 4] has the interval's width, x2."""
    write_probe(layout)
    record_predictions(layout)
    write_events(
        layout,
        "small",
        plan(),
        [
            structs.replace(visit, wall_us=(100.0, 100.0))
            if (visit.n, visit.round) == (4, 1)
            else visit
            for visit in make_visits(SETTING, T)
        ],
    )
    rows = write_tables(layout)(COMPOSITION).filter(predictor="modules_sum").row(0, named=True)
    assert (rows["n_low"], rows["n_high"], rows["measured_width"]) == (2, 4, 2.0)


@pytest.mark.slow
@pytest.mark.parametrize(("n_max", "within"), [(7.9, False), (8.0, True), (64.0, True)])
def test_the_grids_end_is_open_above(layout: Layout, n_max: float, *, within: bool) -> None:
    """A boundary at the grid's end has any larger prediction within."""
    write_probe(layout)
    record_predictions(layout, predicted_payload(n_max=n_max))
    write_model(layout, times=dict.fromkeys(T, 100.0))
    (rows,) = write_tables(layout)(COMPOSITION).filter(predictor="modules_sum").to_dicts()
    assert (rows["n_low"], rows["n_high"], rows["next_n"]) == (8, 8, None)
    assert rows["within"] is within


@pytest.mark.parametrize("ends", [False, True])
def test_no_bound_lies_beyond_the_grid(layout: Layout, *, ends: bool) -> None:
    """An unbounded prediction has a flag and no number, and is within at a grid's end."""
    write_probe(layout)
    record_predictions(layout)
    write_model(layout, times=dict.fromkeys(T, 100.0) if ends else T)
    read = write_tables(layout)
    none = pl.lit(None, pl.Float64)
    laws = read(PREDICTIONS).filter(predictor="idle_compute", basis="probed_gemm", module="model")
    laws = laws.with_columns(n_max=none, low=none, high=none, unbounded=pl.lit(value=True))
    judged = VALIDATION.build(
        validate(read(BOUNDARIES), laws), {*read(BOUNDARIES)["row_id"], *laws["row_id"]}
    )
    takes = read_scope(layout, "cpu")
    (composition,) = compose(judged, read(BOUNDARIES), laws, read(TIME_SHARES), takes)
    assert (composition["unbounded"], composition["predicted"]) == (True, None)
    assert (composition["hit"], composition["within"]) == (ends, ends)


def test_a_refusal_is_a_miss(layout: Layout) -> None:
    """A refusal is neither a hit nor within, and keeps its reason."""
    composition_row = row(layout, predicted_payload(n_max=None))
    assert (composition_row["hit"], composition_row["within"], composition_row["predicted"]) == (
        False,
        False,
        None,
    )
    assert composition_row["refusal"] == "nothing was measured"
    assert composition_row["foretold"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("log", "foretold"),
    [
        ("said taken", True),
        ("taken said", False),
        ("taken said taken", True),
        ("said taken said", False),
        ("said taken said taken", True),
    ],
)
def test_what_was_on_record_first_is_foretold(layout: Layout, log: str, *, foretold: bool) -> None:
    """A prediction is foretold if it was recorded before the boundary's first sample."""
    write_probe(layout)
    takes = {"said": 0, "taken": 0}
    for step in log.split():
        takes[step] += 1
        (record_predictions if step == "said" else write_model)(layout, take=takes[step])
    (rows,) = write_tables(layout)(COMPOSITION).filter(predictor="modules_sum").to_dicts()
    assert rows["foretold"] is foretold


def test_laws_are_not_predicted_in_advance(layout: Layout) -> None:
    """A law evaluated now is not foretold."""
    table_rows = made(layout)(COMPOSITION)
    by_predictor = dict(table_rows.select("predictor", "foretold").rows())
    assert by_predictor["modules_sum"]
    assert not any(on for name, on in by_predictor.items() if name != "modules_sum")
    assert {"principle", "idle_compute"} <= set(by_predictor)


def test_the_newest_shares_count(layout: Layout) -> None:
    """A model's limiter is that of the newest take with shares."""
    write_probe(layout)
    record_predictions(layout)
    grown = {n: us | {HEAD: us[HEAD] * n} for n, us in PARTS.items()}
    first, second = sorted((8, 9), key=lambda rounds: plan_digest(plan(rounds=rounds)))[::-1]
    write_model(layout, rounds=first)
    write_model(layout, rounds=second, parts=grown)
    (rows,) = write_tables(layout)(COMPOSITION).filter(predictor="modules_sum").to_dicts()
    assert rows["measured_limiter"] == HEAD


def test_studies_have_shares_of_their_own(layout: Layout) -> None:
    """If two studies took one setting, each has its own take's limiter and shares."""
    write_probe(layout)
    record_predictions(layout, predicted_payload(limiting_module=HEAD))
    write_model(layout, study="grown", parts=PARTS | {4: PARTS[4] | {HEAD: 90.0}})
    write_model(layout, study="large", parts={n: us | {HEAD: 100.0} for n, us in PARTS.items()})
    rows = write_tables(layout)(COMPOSITION).filter(predictor="modules_sum").sort("stream")
    assert rows.select("stream", "measured_limiter", "limiter_share").rows() == [
        ("grown", HEAD, 0.1),
        ("large", ATTENTION, 100 / 190),
    ]


def test_every_id_exists(layout: Layout) -> None:
    """A row's ids are its judgement, boundary, prediction and shares."""
    read = made(layout)
    tables = {kind.name: set(read(kind)["row_id"])
              for kind in (VALIDATION, BOUNDARIES, PREDICTIONS, TIME_SHARES)}  # fmt: skip
    for ids in read(COMPOSITION)["from_ids"].to_list():
        kinds = [event_id.partition(":")[0] for event_id in ids]
        assert kinds == [*list(tables)[:3], "time_shares", "time_shares"]
        assert all(event_id in tables[kind] for event_id, kind in zip(ids, kinds, strict=True))


def test_modules_are_not_composed(layout: Layout) -> None:
    """A log without models has an empty table."""
    write_probe(layout)
    write_study(layout)
    assert write_tables(layout)(COMPOSITION).is_empty()
