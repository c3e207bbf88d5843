"""Curve files of simulated platforms: the work model's T(N) of every setting of their studies."""

import re
from collections import defaultdict

import polars as pl
from msgspec import structs

from nearfree.config.files import Config
from nearfree.config.model_studies import uses
from nearfree.config.plans import Plans
from nearfree.core.plan import Sweep
from nearfree.core.precision import Dtype
from nearfree.core.predictors import WORK_MODEL
from nearfree.core.setting import Setting
from nearfree.derive.granularity.query_frame import ASKED_SCHEMA, Question, question_row
from nearfree.derive.granularity.releases import Release, ruled_release
from nearfree.derive.predict.answers import Answerer
from nearfree.derive.predict.forecast.on_record import newest
from nearfree.derive.reference.answer import TimedQuestions
from nearfree.derive.reference.regimes import NEAREST_TEXT
from nearfree.errors import ConfigError
from nearfree.hardware.platforms import Platform
from nearfree.hardware.simulated import Curve, CurveFile, Forward, Part, Refused
from nearfree.log.codebase import digest

_DTYPE: Dtype = "bfloat16"
_REQUIRED_FACTS = ("device_name", "sm_count", "bandwidth_gb_s")
_BYTES_PER_MIB = 1024**2
_ROUTER_REFUSAL = "the model's own router decides which experts run: no curve says T(N)"


def curve_file(config: Config, scope: str, answerer: Answerer) -> CurveFile:
    """Return the predicted T(N) of every setting that a platform's studies measure.

    A backend has the newest release that config/sources.yaml lists, as for `nearfree predict`. A
    model's forward is the sum of its modules, without the time between them.

    Raises
    ------
    ConfigError
        The platform's datasheet lacks a fact that predictions need.
    """
    sheet = config.platform(scope)
    _check_datasheet(scope, sheet)
    studies = _Studies(config, scope)
    timed = answerer.timed(studies.frame())
    settings = list(studies.grids)
    refusals = {settings[number]: reason for number, reason in sorted(timed.refusals().items())}
    refused = [Refused(setting=setting, refusal=reason) for setting, reason in refusals.items()]
    forwards = []
    for setting, parts in studies.models.items():
        reasons = [
            f"{part.role}: {refusals[part.setting]}" for part in parts if part.setting in refusals
        ]
        if parts and not reasons:
            forwards.append(Forward(setting=setting, parts=parts))
        else:
            reason = reasons[0] if reasons else _ROUTER_REFUSAL
            refused.append(Refused(setting=setting, refusal=reason))
    releases = {
        release.package: release.version for release in studies.releases.values() if release
    }
    return CurveFile(
        platform=scope,
        device=sheet.device_name or "",
        dtype=_DTYPE,
        features=(f"sm_{sheet.sm}",) if sheet.sm else (),
        cores=sheet.sm_count or 0,
        cache_bytes=round((sheet.l2_mib or 0) * _BYTES_PER_MIB),
        peak_tflops=sheet.peak_tflops,
        bandwidth_gb_s=sheet.bandwidth_gb_s or 0,
        predictor=WORK_MODEL,
        code=digest(__name__),
        releases=dict(sorted(releases.items())),
        calibrations={
            re.sub(NEAREST_TEXT, "", constants): ", ".join(events)
            for part in timed.curves()
            for constants, events in zip(part.constants, part.calibration, strict=True)
        },
        curves=studies.curves(timed),
        forwards=tuple(forwards),
        refused=tuple(refused),
    )


def _check_datasheet(scope: str, sheet: Platform) -> None:
    missing = [name for name in _REQUIRED_FACTS if not getattr(sheet, name)]
    if _DTYPE not in sheet.peak_tflops:
        missing.append(f"peak_tflops.{_DTYPE}")
    if missing:
        raise ConfigError(
            f"{scope} cannot be simulated: its datasheet lacks {', '.join(missing)}",
            remedy="Name platforms whose datasheets in config/platforms.yaml have them",
        )


class _Studies:
    """The settings of a platform's studies: modules with all N of each, and models' parts.

    A setting's number is its place in `grids`.
    """

    def __init__(self, config: Config, scope: str) -> None:
        self._config, self._scope = config, scope
        numbers: dict[Setting, set[int]] = defaultdict(set)
        self.models: dict[Setting, tuple[Part, ...]] = {}
        plans = Plans(config, scope)
        for sweep in (sweep for stream in plans.measured for sweep in plans.sweeps(stream)):
            for setting in self._settings(sweep):
                numbers[setting].update(sweep.positions)
        self.grids = {setting: sorted(grid) for setting, grid in numbers.items()}
        self.releases = {
            name: self._release(name) for name in {setting.backend for setting in self.grids}
        }

    def _settings(self, sweep: Sweep) -> list[Setting]:
        """Return the modules of a sweep: itself, or the parts of a model, which are kept."""
        setting = sweep.setting
        if setting.dtype == "auto":
            setting = structs.replace(setting, dtype=_DTYPE)
        if setting.module != "model":
            return [setting]
        self.models[setting] = tuple(
            Part(role=use.role, count=use.count, setting=use.setting)
            for use in uses(setting, self._config.model(setting.model or ""))
        )
        return [part.setting for part in self.models[setting]]

    def _release(self, backend: str) -> Release | None:
        try:
            version = newest(self._config, backend.replace("_", "-")).version
        except ConfigError:
            return None  # no release is listed or has rules; the predictor refuses with that reason
        return ruled_release(backend, version or "0") if version else None

    def frame(self) -> pl.DataFrame:
        """Return the queries, one row per setting, each from its smallest N."""
        rows = []
        for number, (setting, grid) in enumerate(self.grids.items()):
            release = self.releases[setting.backend]
            version = release.version if release else None
            question = Question(platform=self._scope, setting=setting, version=version)
            rows.append(question_row(number, question, grid))
        return pl.DataFrame(rows, schema=ASKED_SCHEMA)

    def curves(self, timed: TimedQuestions) -> tuple[Curve, ...]:
        """Return the curve of each setting that has one, in the order of settings."""
        settings = list(self.grids.items())
        curves = {}
        for part in timed.curves():
            for row, number in enumerate(part.asked):
                setting, grid = settings[number]
                release = self.releases[setting.backend]
                us, rows, packed = (
                    [] if values is None else values[row, : len(grid)].tolist()
                    for values in (part.latency_us, part.rows, part.packed)
                )
                curves[number] = Curve(
                    setting=setting,
                    release="==".join(release) if release else None,
                    n=tuple(grid),
                    latency_us=tuple(round(value, 4) for value in us),
                    block_rows=tuple(map(int, rows)),
                    rows_per_position=tuple(map(int, packed)),
                )
        return tuple(curves[number] for number in sorted(curves))
