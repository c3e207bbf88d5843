"""T(N) of a model's forward: the sum of its modules' T(N), each as often as it runs.

Where an engine serves it, a step has besides what its kernels between modules and its host take
(`step`); kernels between the modules of any other forward are not counted.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import polars as pl
from msgspec import Struct, structs

from nearfree.decoders.modules import HOST
from nearfree.derive.engine_step.launches import launched
from nearfree.derive.predict.answers import Answerer
from nearfree.derive.predict.forecast.deployment import Deployment, Questions
from nearfree.derive.predict.forecast.padding import REAL, Padding, padded, steps_of, timed_grid
from nearfree.derive.predict.forecast.step import Steps, widened
from nearfree.derive.reference.answer import PREDICTOR as PREDICTOR  # noqa: PLC0414
from nearfree.derive.reference.answer import TimedQuestions
from nearfree.derive.work_model.family import Array, Flags, Places

SUM, MINIMUM = "sum", "minimum"
"""How modules make a model: the sum of their times, or the minimum of their boundaries."""


LEAST_SHARE = 0.05
"""Share of T(1) below which a module's regime does not count for its model."""


class Behind(NamedTuple):
    """What T(N) of a module rests on."""

    constants: str
    calibration: list[str]
    regime: str


class Total(Struct, frozen=True, kw_only=True):
    """T(N) of deployments, module by module.

    Parameters
    ----------
    latency_us
        What each module takes in one forward, all its layers together, [deployments, places, grid];
        0 where a deployment has no such place, NaN where no T(N) is known of a module. The last two
        places are what lies between modules, and the host.
    band
        How far ln(T(N) / T(baseline)) of each may be off, [deployments, places].
    asked
        The question of each module, [deployments, places], -1 where there is none.
    roles
        The name of each module, and of what a step has besides, by deployment and place.
    grid
        N, [grid].
    refusals
        Why no T(N) of a deployment is known, None where it is.
    constants, calibration, in_sample
        The constants behind each deployment, their events, and whether they were calibrated on its
        platform.
    regimes
        What each module's T(N) stands on, by deployment and place.
    padding
        The graphs that steps are padded to, None where no engine runs them.
    """

    latency_us: Array
    band: Array
    asked: Places
    roles: Sequence[Mapping[int, str]]
    grid: Places
    refusals: Sequence[str | None]
    constants: Sequence[str]
    calibration: Sequence[tuple[str, ...]]
    in_sample: Flags
    regimes: Sequence[Mapping[int, str]]
    timed: TimedQuestions
    padding: Padding | None = None

    @property
    def model_us(self) -> Array:
        """T(N) of the whole forward, [deployments, grid]; NaN where it is not known."""
        return np.asarray(self.latency_us.sum(axis=1))

    def modules(self, deployment: int) -> list[int]:
        """Return the places of a deployment's modules, without what a step has besides."""
        return [place for place in self.roles[deployment] if self.asked[deployment, place] >= 0]

    @property
    def unpadded_us(self) -> Array:
        """What each module would take with the rows that a step has, as `latency_us`."""
        return self.padding.unpadded_us if self.padding else self.latency_us

    def regime(self, deployment: int) -> str | None:
        """Return the regime of a whole forward, None where T(N) is not known.

        It is the weakest of the modules that take at least a twentieth of T(N) at the smallest N,
        or that of the longest, where none does and the rest of a step takes nearly all of it.
        """
        first, regimes = self.latency_us[deployment, :, 0], self.regimes[deployment]
        if self.refusals[deployment]:
            return None
        longest = max((first[place] for place in regimes), default=0.0)
        least = min(LEAST_SHARE * first.sum(), longest)
        return min((each for place, each in regimes.items() if first[place] >= least), default=None)

    def moved_us(self, direction: float) -> Array:
        """Return T(N) where every module is off by its band in one direction.

        It is meant over an unmoved T(baseline); at the baseline itself it says nothing.
        """
        factors = np.repeat(np.exp(direction * self.band)[:, :, None], len(self.grid), axis=2)
        return np.asarray((self.latency_us * factors).sum(axis=1))


def total(questions: Questions, answerer: Answerer) -> Total:
    """Return T(N) of deployments by the work model, as engines pad steps where graphs are named."""
    grid = questions.grid
    steps, reasons = steps_of(questions.deployments, grid, answerer)
    if not any(steps) and not any(reasons):
        return _timed(questions, answerer)
    asked = Questions(questions.deployments, timed_grid(grid, steps))
    timed = _timed(asked, answerer)
    real = np.zeros(timed.asked.shape, dtype=bool)
    seen = asked.uses.filter(pl.col("module").is_in(REAL))
    real[seen["deployment"].to_numpy(), seen["place"].to_numpy()] = True
    launches = [
        launched(each.uses(), each.decoder.pairs) if any(step.size is None for step in own) else 0
        for each, own in zip(questions.deployments, steps, strict=True)
    ]
    latency, padding = padded(asked.grid, grid, timed.latency_us, steps, real, launches=launches)
    refused = [own or why for own, why in zip(timed.refusals, reasons, strict=True)]
    host = {latency.shape[1] - 1: HOST}
    return structs.replace(
        timed,
        latency_us=latency,
        grid=np.array(grid),
        padding=padding,
        refusals=refused,
        roles=[
            {**roles, **host} if waits.any() else roles
            for roles, waits in zip(timed.roles, padding.waits_us, strict=True)
        ],
    )


def _timed(questions: Questions, answerer: Answerer) -> Total:
    """Return T(N) of deployments whose steps run the rows that they have."""
    timed = answerer.timed(questions.frame)
    asked_count, width = questions.frame.height, len(questions.grid)
    times = np.full((asked_count, width), np.nan)
    bands = np.zeros(asked_count)
    seen = np.zeros(asked_count, dtype=bool)
    behind: dict[int, Behind] = {}
    for curves in timed.curves():
        times[curves.asked] = curves.latency_us
        bands[curves.asked] = curves.band
        seen[curves.asked] = curves.in_sample
        behind |= {
            asked: Behind(text, events, regime)
            for asked, text, events, regime in zip(
                curves.asked, curves.constants, curves.calibration, curves.regime, strict=True
            )
        }
    uses = questions.uses
    at = uses["deployment"].to_numpy(), uses["place"].to_numpy()
    asked = uses["asked"].to_numpy()
    shape = len(questions.deployments), int(uses["place"].max() or 0) + 1  # type: ignore[arg-type]
    alone = np.zeros((*shape, width))
    alone[at] = times[asked] * uses["count"].to_numpy()[:, None]
    parts: list[list[tuple[str, int]]] = [[] for _ in questions.deployments]
    for deployment, role, question in uses.select("deployment", "role", "asked").iter_rows():
        parts[deployment].append((role, question))
    refused, grid = timed.refusals(), np.array(questions.grid)
    steps = Steps(answerer.engine_steps, answerer.bandwidths_gb_s)
    named = [dict(enumerate(role for role, _ in part)) for part in parts]
    latency, roles = widened(steps, questions.deployments, named, alone, grid)
    shape = latency.shape[:2]
    band, which, sampled = np.zeros(shape), np.full(shape, -1), np.zeros(shape, dtype=bool)
    band[at], which[at], sampled[at] = bands[asked], asked, seen[asked]
    rests_on = [
        [*(behind[asked] for _, asked in part if asked in behind), *_of_step(steps, each)]
        for part, each in zip(parts, questions.deployments, strict=True)
    ]
    return Total(
        latency_us=latency,
        band=band,
        asked=which,
        roles=roles,
        grid=grid,
        refusals=[_refusal(part, refused) for part in parts],
        constants=["; ".join(sorted({each.constants for each in own})) for own in rests_on],
        calibration=[
            tuple(sorted({event for each in own for event in each.calibration})) for own in rests_on
        ],
        regimes=[
            {
                place: behind[question].regime
                for place, (_, question) in enumerate(part)
                if question in behind
            }
            for part in parts
        ],
        in_sample=np.asarray(sampled.any(axis=1)),
        timed=timed,
    )


def _refusal(part: Sequence[tuple[str, int]], refused: Mapping[int, str]) -> str | None:
    """Return every module of which no T(N) is known, and why; None where there is none."""
    reasons: dict[str, list[str]] = {}
    for role, asked in part:
        if asked in refused:
            reasons.setdefault(refused[asked], []).append(role)
    told = (f"{', '.join(dict.fromkeys(roles))}: {why}" for why, roles in reasons.items())
    return "; ".join(told) or None


def _of_step(steps: Steps, deployment: Deployment) -> list["Behind"]:
    """Return what a step rests on besides its modules, nothing where that is not known."""
    step = steps.of(deployment)
    return [Behind(step.text, [step.event.event_id], "")] if step else []
