"""A log in which a small model was predicted and measured, with hand-made numbers."""

from collections.abc import Callable, Mapping
from typing import Any

import polars as pl
from msgspec import structs
from nearfree.config.model_studies import model_sweeps
from nearfree.core.plan import ForetellPlan, MeasurePlan
from nearfree.core.protocols import Interleaved
from nearfree.core.setting import Setting
from nearfree.decoders.ranks.modules import ATTENTION, DENSE, HEAD, QKV
from nearfree.derive.predict.predictions import write_predictions
from nearfree.derive.score.validation import write_validation
from nearfree.derive.tables.boundaries import write_boundaries
from nearfree.derive.tables.project import project
from nearfree.derive.tables.schema import Table
from nearfree.derive.tables.store import read_table
from nearfree.log.events import Payload, PredictionRecorded, SharesMeasured
from nearfree.log.names import Layout
from whole_models import model_study, plan_of, small, write_events

from derive.tables.logs import config_at, make_visits, write_probe

MODEL = small()
SWEEPS = model_sweeps(model_study(), MODEL)
SETTING = SWEEPS[0].setting
TOLERANCES = (0.2,)
T = {1: 100.0, 2: 110.0, 4: 130.0, 8: 200.0}
"""Microseconds of the model: N_max is 2 at a tolerance of 0.2, and the next N is 4."""
PARTS: dict[int, dict[str, float]] = {
    1: {QKV: 20.0, ATTENTION: 30.0, DENSE: 40.0, HEAD: 10.0},
    2: {QKV: 20.0, ATTENTION: 30.0, DENSE: 50.0, HEAD: 10.0},
    4: {QKV: 22.0, ATTENTION: 45.0, DENSE: 43.0, HEAD: 20.0},
    8: {QKV: 22.0, ATTENTION: 45.0, DENSE: 93.0, HEAD: 40.0},
}
"""From N = 1 to 4 they grow by 2, 15, 3 and 10: attention by a half of 30."""


def plan(setting: Setting = SETTING, rounds: int = 8, baseline: int = 1) -> MeasurePlan:
    """Return the plan of the model's take."""
    sweeps = tuple(structs.replace(sweep, setting=setting, baseline=baseline) for sweep in SWEEPS)
    return plan_of(MODEL, sweeps, protocol=Interleaved(rounds=rounds))


def predicted_payload(
    predictor: str = "modules_sum", n_max: float | None = 3.0, **changes: Any
) -> Payload:
    """Return one prediction, or a refusal."""
    fields: dict[str, Any] = {
        "setting": SETTING,
        "baseline": 1,
        "epsilon": 0.2,
        "limiting_module": ATTENTION if n_max else None,
        "limiting_term": "given" if n_max else None,
        "evidence": "given" if n_max else None,
        "refusal": None if n_max else "nothing was measured",
    }
    return PredictionRecorded(predictor=predictor, n_max=n_max, **(fields | changes))


def record_predictions(
    layout: Layout, *payloads: Payload, take: int = 1, study: str = "small"
) -> None:
    """Put predictions on record, now."""
    foretell = ForetellPlan(sweeps=SWEEPS, models={"small": MODEL.plain}, tolerances=TOLERANCES)
    write_events(layout, f"{study}_foretold", foretell, payloads or [predicted_payload()], take)


def write_model(
    layout: Layout,
    take: int = 1,
    *,
    times: Mapping[int, float] = T,
    parts: Mapping[int, Mapping[str, float]] = PARTS,
    setting: Setting = SETTING,
    rounds: int = 8,
    baseline: int = 1,
    study: str = "small",
) -> None:
    """Seal a take of the model, now."""
    events: list[Payload] = [*make_visits(setting, times, baseline=baseline)]
    events += [
        SharesMeasured(
            setting=setting, n=n, round=number, part_us=dict(us), dirty=False, timer="cpu"
        )
        for number in range(3)
        for n, us in parts.items()
    ]
    write_events(layout, study, plan(setting, rounds, baseline), events, take)


def write_tables(layout: Layout) -> Callable[[Table], pl.DataFrame]:
    """Make the scope's tables, and return a reader of them."""
    project(layout, "cpu", {})
    write_boundaries(layout, "cpu", tolerances=TOLERANCES, epsilon=0.2)
    write_predictions(layout, "cpu", config_at(TOLERANCES))
    write_validation(layout, "cpu")
    return lambda table: read_table(layout, "cpu", table)


def made(layout: Layout, *payloads: Payload) -> Callable[[Table], pl.DataFrame]:
    """Return the tables of a log in which predictions come first, then the model."""
    write_probe(layout)
    record_predictions(layout, *payloads)
    write_model(layout)
    return write_tables(layout)
