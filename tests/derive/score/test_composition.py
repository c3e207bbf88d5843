"""Table `composition`: each way of composing a model's boundary, against the measured one."""

from typing import Any

import polars as pl
import pytest
from msgspec import structs
from nearfree.core.plan import plan_digest
from nearfree.decoders.modules import ATTENTION, BETWEEN, DENSE, HEAD
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
    said,
    write_model,
    write_said,
    write_tables,
)
from derive.tables.logs import make_visits, write_probe, write_study

Row = dict[str, Any]


def row(layout: Layout, *payloads: Any) -> Row:
    """Return what the table says of the sum of modules, given its prediction first."""
    found = made(layout, *payloads)(COMPOSITION).filter(predictor="modules_sum")
    return found.row(0, named=True)


def test_the_measured_limiter_grew_most(layout: Layout) -> None:
    """Up to the N after the boundary attention grew by 15 of 30; the FFN only grew later."""
    found = row(layout)
    assert (found["n_max"], found["next_n"]) == (2, 4)
    assert (found["measured_limiter"], found["measured_growth"]) == (ATTENTION, 0.5)


def test_at_the_grids_end_all_growth_counts(layout: Layout) -> None:
    """Where no N lies after the boundary, growth is that from the baseline to the last N."""
    write_probe(layout)
    write_said(layout)
    write_model(layout, times=dict.fromkeys(T, 100.0))
    (found,) = write_tables(layout)(COMPOSITION).filter(predictor="modules_sum").to_dicts()
    assert (found["n_max"], found["next_n"]) == (8, None)
    assert found["measured_limiter"] == DENSE
    assert found["measured_growth"] == pytest.approx(53 / 100)


def watched(layout: Layout, parts: dict[int, dict[str, float]]) -> Row:
    """Return what the table says where the modules took these times inside the model."""
    write_probe(layout)
    write_said(layout)
    write_model(layout, parts=parts)
    (found,) = write_tables(layout)(COMPOSITION).filter(predictor="modules_sum").to_dicts()
    return found


def test_between_is_no_limiter(layout: Layout) -> None:
    """What is no module is never named, even if it grew most; its 60 us count as growth."""
    parts = {n: {BETWEEN: us, **PARTS[n]} for n, us in ((1, 10.0), (4, 70.0))}
    found = watched(layout, parts)
    assert (found["measured_limiter"], found["measured_growth"]) == (ATTENTION, 15 / 90)


def test_what_shrinks_is_no_growth(layout: Layout) -> None:
    """A part of growth is that of what grew: 15 of 27 us where the FFN gets 20 us faster."""
    found = watched(layout, PARTS | {4: PARTS[4] | {DENSE: 20.0}})
    assert (found["measured_limiter"], found["measured_growth"]) == (ATTENTION, 15 / 27)


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
    """Without shares at the baseline and the next N nothing is said; no growth has no parts."""
    found = watched(layout, parts)
    assert (found["measured_limiter"], found["measured_growth"]) == (limiter, growth)


def test_the_predicted_limiter_is_held_against_it(layout: Layout) -> None:
    """What a prediction names is compared with what was measured, and weighed by its share."""
    payloads = [
        said(),
        said("modules_minimum", limiting_module=DENSE),
        said("principle_counted", None, basis="probed_gemm"),
    ]
    rows = made(layout, *payloads)(COMPOSITION).to_dicts()
    found = {each["predictor"]: each for each in rows if each["predictor"] in
             ("modules_sum", "modules_minimum", "principle_counted")}  # fmt: skip
    named = {name: (each["limiter"], each["same_limiter"], each["limiter_share"])
             for name, each in found.items()}  # fmt: skip
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
    """A hit lies in [N_max, next N); within is inside the measured interval of N_max."""
    found = row(layout, said(n_max=n_max))
    assert (found["n_low"], found["n_high"]) == (2, 2)
    assert (found["predicted"], found["hit"], found["within"]) == (n_max, hit, within)


def test_the_intervals_width_is_told(layout: Layout) -> None:
    """A prediction within [2, 4] is told beside the width of what it lies in, here x2."""
    write_probe(layout)
    write_said(layout)
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
    found = write_tables(layout)(COMPOSITION).filter(predictor="modules_sum").row(0, named=True)
    assert (found["n_low"], found["n_high"], found["measured_width"]) == (2, 4, 2.0)


@pytest.mark.slow
@pytest.mark.parametrize(("n_max", "within"), [(7.9, False), (8.0, True), (64.0, True)])
def test_the_grids_end_is_open_above(layout: Layout, n_max: float, *, within: bool) -> None:
    """A boundary at the grid's end may lie anywhere beyond: any larger prediction is within."""
    write_probe(layout)
    write_said(layout, said(n_max=n_max))
    write_model(layout, times=dict.fromkeys(T, 100.0))
    (found,) = write_tables(layout)(COMPOSITION).filter(predictor="modules_sum").to_dicts()
    assert (found["n_low"], found["n_high"], found["next_n"]) == (8, 8, None)
    assert found["within"] is within


@pytest.mark.parametrize("ends", [False, True])
def test_no_bound_lies_beyond_the_grid(layout: Layout, *, ends: bool) -> None:
    """What says that no N is too large has a flag, no number, and is within at a grid's end."""
    write_probe(layout)
    write_said(layout)
    write_model(layout, times=dict.fromkeys(T, 100.0) if ends else T)
    read = write_tables(layout)
    none = pl.lit(None, pl.Float64)
    laws = read(PREDICTIONS).filter(predictor="idle_compute", basis="probed_gemm", module="model")
    laws = laws.with_columns(n_max=none, low=none, high=none, unbounded=pl.lit(value=True))
    judged = VALIDATION.build(
        validate(read(BOUNDARIES), laws), {*read(BOUNDARIES)["row_id"], *laws["row_id"]}
    )
    takes = read_scope(layout, "cpu")
    (found,) = compose(judged, read(BOUNDARIES), laws, read(TIME_SHARES), takes)
    assert (found["unbounded"], found["predicted"]) == (True, None)
    assert (found["hit"], found["within"]) == (ends, ends)


def test_a_refusal_is_a_miss(layout: Layout) -> None:
    """A refusal neither hits nor lies within, and keeps its reason."""
    found = row(layout, said(n_max=None))
    assert (found["hit"], found["within"], found["predicted"]) == (False, False, None)
    assert found["refusal"] == "nothing was measured"
    assert found["foretold"]


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
    """Foretold is what was recorded before the first sample of the take of the boundary."""
    write_probe(layout)
    takes = {"said": 0, "taken": 0}
    for step in log.split():
        takes[step] += 1
        (write_said if step == "said" else write_model)(layout, take=takes[step])
    (found,) = write_tables(layout)(COMPOSITION).filter(predictor="modules_sum").to_dicts()
    assert found["foretold"] is foretold


def test_laws_are_not_foretold(layout: Layout) -> None:
    """Only what was put on record can be foretold: a law that is asked now is not."""
    found = made(layout)(COMPOSITION)
    told = dict(found.select("predictor", "foretold").rows())
    assert told["modules_sum"]
    assert not any(on for name, on in told.items() if name != "modules_sum")
    assert {"principle", "idle_compute"} <= set(told)


def test_the_newest_shares_count(layout: Layout) -> None:
    """Where a model was taken by another protocol since, its limiter is that of the newer take."""
    write_probe(layout)
    write_said(layout)
    grown = {n: us | {HEAD: us[HEAD] * n} for n, us in PARTS.items()}
    first, second = sorted((8, 9), key=lambda rounds: plan_digest(plan(rounds=rounds)))[::-1]
    write_model(layout, rounds=first)
    write_model(layout, rounds=second, parts=grown)
    (found,) = write_tables(layout)(COMPOSITION).filter(predictor="modules_sum").to_dicts()
    assert found["measured_limiter"] == HEAD


def test_studies_have_shares_of_their_own(layout: Layout) -> None:
    """Where two studies took one setting, each has the limiter and shares of its own take."""
    write_probe(layout)
    write_said(layout, said(limiting_module=HEAD))
    write_model(layout, study="grown", parts=PARTS | {4: PARTS[4] | {HEAD: 90.0}})
    write_model(layout, study="large", parts={n: us | {HEAD: 100.0} for n, us in PARTS.items()})
    found = write_tables(layout)(COMPOSITION).filter(predictor="modules_sum").sort("stream")
    assert found.select("stream", "measured_limiter", "limiter_share").rows() == [
        ("grown", HEAD, 0.1),
        ("large", ATTENTION, 100 / 190),
    ]


def test_every_id_exists(layout: Layout) -> None:
    """A row names its judgement, boundary, prediction, and the shares that its limiter is from."""
    read = made(layout)
    tables = {kind.name: set(read(kind)["row_id"])
              for kind in (VALIDATION, BOUNDARIES, PREDICTIONS, TIME_SHARES)}  # fmt: skip
    for ids in read(COMPOSITION)["from_ids"].to_list():
        kinds = [each.partition(":")[0] for each in ids]
        assert kinds == [*list(tables)[:3], "time_shares", "time_shares"]
        assert all(each in tables[kind] for each, kind in zip(ids, kinds, strict=True))


def test_modules_are_not_composed(layout: Layout) -> None:
    """A log of modules alone has an empty table."""
    write_probe(layout)
    write_study(layout)
    assert write_tables(layout)(COMPOSITION).is_empty()
