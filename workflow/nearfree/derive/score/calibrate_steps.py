"""The constants of engines' steps: fitted to the project's published steps, and sealed."""

import numpy as np
from msgspec import json

from nearfree.config.files import Config
from nearfree.core.plan import CalibratePlan
from nearfree.core.scopes import PUBLIC
from nearfree.derive.engine_step.form import CONSTANTS
from nearfree.derive.engine_step.recorded import FAMILY, HYPOTHESIS, STREAM
from nearfree.derive.predict.answers import Answerer
from nearfree.derive.reference.record import kernel_takes, takes_of
from nearfree.derive.score.whole import StepFit
from nearfree.derive.score.whole_steps import ROUTING, timed_steps
from nearfree.derive.work_model.constants import recorded_constants
from nearfree.derive.work_model.families import CALIBRATED_DTYPES
from nearfree.errors import EvidenceError
from nearfree.log.events import ConstantsCalibrated
from nearfree.log.line import sha256
from nearfree.log.names import Layout
from nearfree.log.seal import Seal
from nearfree.log.take import ensure_events, ensure_sealed, take_name
from nearfree.public.whole_models import FILE, read_rows

FORM = 15
"""Version of the form, of its fit and of the rows that it answers; any change raises it."""
TRIED = (
    f"{ROUTING}; balanced and power_law:1.2",
    "five kernels a layer; counted by kind of layer and format",
    "others' prompts in a step counted; left to request_us",
    "shared experts beside the routed ones; behind them",
    "waits of ranks at all-reduces; left to layer_us",
)
"""Alternatives that were compared on all rows: the one in use; the others."""


def evidence_digests(layout: Layout) -> dict[str, str]:
    """Return the takes behind the modules' times, with the SHA-256 of their seals."""
    constants = recorded_constants(layout).values()
    return kernel_takes(layout) | takes_of(layout, (event.event_id for event in constants))


def calibrate_steps(layout: Layout, config: Config, *, offline: bool = False) -> Seal:
    """Make sure that the constants of engines' steps are sealed.

    Raises EvidenceError if no engine has enough answered rows.
    """
    path = config.folder / FILE
    file = read_rows(path)
    plan = CalibratePlan(
        source="whole_steps",
        files={FILE: file.digest, **evidence_digests(layout)},
        platforms=tuple(sorted(config.platforms)),
        epsilon=config.site.epsilon,
        form=FORM,
    )
    name = take_name(PUBLIC, STREAM, 1, plan)
    sealed = ensure_sealed(layout, name)
    if sealed is not None:
        return sealed
    answerer = Answerer(layout, config, offline=offline)
    fit = StepFit(timed_steps(file.rows, config, answerer), answerer.bandwidths_gb_s)
    events = [event for engine in fit.engines if (event := _event(fit, engine, config, plan.files))]
    if not events:
        raise EvidenceError(
            f"{path}: no engine has enough answered rows",
            remedy="Record the kernels first: `nearfree calibrate --kernels`",
        )
    return ensure_events(layout, name, plan, "nearfree calibrate --steps", lambda: events)


def _event(
    fit: StepFit, engine: str, config: Config, files: dict[str, str]
) -> ConstantsCalibrated | None:
    """Return an engine's constants as an event of the log; None where it has too few rows."""
    constants = fit.of(engine)
    if constants is None or engine not in fit.bands:
        return None
    rows = [step for step in fit.used if step.row.engine == engine]
    fitted_rows = [[step.row.line, step.row.t_us, step.asked] for step in rows]
    return ConstantsCalibrated(
        family=f"{FAMILY}{engine}",
        dtypes=CALIBRATED_DTYPES,
        constants=tuple(
            step.calibrated(HYPOTHESIS, float(np.round(getattr(constants, step.name), 3)))
            for step in CONSTANTS
        ),
        band=float(np.round(fit.bands[engine], 4)),
        epsilon=config.site.epsilon,
        platforms=tuple(sorted({e.deployment.platform for e in rows if e.deployment})),
        selection=", ".join(sorted({step.row.model for step in rows})),
        curves=len(rows),
        rows_sha256=sha256(json.encode(fitted_rows)),
        files=files,
        members={},
        tried=TRIED,
    )
