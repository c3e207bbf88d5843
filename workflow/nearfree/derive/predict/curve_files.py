"""Curve files of simulated platforms: the work model's T(N) of every setting of their studies."""

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence

import polars as pl
from msgspec import structs

from nearfree.config.files import Config
from nearfree.config.model_studies import uses
from nearfree.config.plans import Plans
from nearfree.core.plan import Sweep
from nearfree.core.precision import Dtype
from nearfree.core.setting import Setting
from nearfree.derive.granularity.query_frame import ASKED_SCHEMA
from nearfree.derive.granularity.releases import Release, ruled_release
from nearfree.derive.predict.answers import Answerer
from nearfree.derive.predict.forecast.on_record import newest
from nearfree.derive.reference.answer import PREDICTOR, TimedQuestions
from nearfree.derive.reference.regimes import NEAREST_TEXT
from nearfree.derive.tables.settings import setting_row
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
    curves = dict(studies.curves(timed))
    refusals = timed.refusals()
    refusals_of = {setting: refusals[number] for setting, number in studies.numbers.items()
            if number in refusals}  # fmt: skip
    refused = [Refused(setting=setting, refusal=reason) for setting, reason in refusals_of.items()]
    forwards = []
    for setting, parts in studies.models.items():
        missing = [part for part in parts if part.setting in refusals_of]
        if parts and not missing:
            forwards.append(Forward(setting=setting, parts=parts))
        else:
            reason = (
                f"{missing[0].role}: {refusals_of[missing[0].setting]}"
                if missing
                else _ROUTER_REFUSAL
            )
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
        predictor=PREDICTOR,
        code=digest(__name__),
        releases=dict(sorted(releases.items())),
        calibrations={
            re.sub(NEAREST_TEXT, "", constants): ", ".join(events)
            for part in timed.curves()
            for constants, events in zip(part.constants, part.calibration, strict=True)
        },
        curves=tuple(curves.values()),
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
    """The settings of a platform's studies, modules and models, with all N of each."""

    def __init__(self, config: Config, scope: str) -> None:
        self._config, self._scope = config, scope
        self._grids: dict[Setting, set[int]] = defaultdict(set)
        self.models: dict[Setting, tuple[Part, ...]] = {}
        plans = Plans(config, scope)
        for sweep in (sweep for stream in plans.measured for sweep in plans.sweeps(stream)):
            self._add(sweep)
        self.numbers = {setting: number for number, setting in enumerate(self._grids)}
        self.releases = {
            name: self._release(name) for name in {setting.backend for setting in self._grids}
        }

    def _add(self, sweep: Sweep) -> None:
        setting = sweep.setting
        if setting.dtype == "auto":
            setting = structs.replace(setting, dtype=_DTYPE)
        if setting.module != "model":
            self._grids[setting].update(sweep.positions)
            return
        module_uses = uses(setting, self._config.model(setting.model or ""))
        self.models[setting] = tuple(
            Part(role=use.role, count=use.count, setting=use.setting) for use in module_uses
        )
        for use in module_uses:
            self._grids[use.setting].update(sweep.positions)

    def _release(self, backend: str) -> Release | None:
        try:
            version = newest(self._config, backend.replace("_", "-")).version
        except ConfigError:
            return None  # no release is listed or has rules; the predictor refuses with that reason
        return ruled_release(backend, version or "0") if version else None

    def grid(self, setting: Setting) -> list[int]:
        """Return a setting's N, rising."""
        return sorted(self._grids[setting])

    def frame(self) -> pl.DataFrame:
        """Return the queries, one row per setting, each from its smallest N."""
        rows = []
        for setting, number in self.numbers.items():
            release, grid = self.releases[setting.backend], self.grid(setting)
            rows.append(
                {
                    "asked": number,
                    "platform": self._scope,
                    **setting_row(setting),
                    "backend_version": release.version if release else None,
                    "kernel": None,
                    "baseline": grid[0],
                    "grid": grid,
                }
            )
        return pl.DataFrame(rows, schema=ASKED_SCHEMA)

    def curves(self, timed: TimedQuestions) -> Iterator[tuple[Setting, Curve]]:
        """Yield the curve of each setting that has one, in the order of settings."""
        settings = list(self.numbers)
        curves = {}
        for part in timed.curves():
            for row, number in enumerate(part.asked):
                setting = settings[number]
                grid, release = self.grid(setting), self.releases[setting.backend]
                arrays = (part.latency_us, part.rows, part.packed)
                us, rows, packed = (
                    [] if values is None else values[row, : len(grid)].tolist() for values in arrays
                )
                curves[number] = Curve(
                    setting=setting,
                    release="==".join(release) if release else None,
                    n=tuple(grid),
                    latency_us=tuple(round(value, 4) for value in us),
                    block_rows=_integers(rows),
                    rows_per_position=_integers(packed),
                )
        yield from ((settings[number], curves[number]) for number in sorted(curves))


def _integers(values: Sequence[float]) -> tuple[int, ...]:
    return tuple(int(value) for value in values)
