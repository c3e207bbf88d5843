"""The forwards of engines in a log: what was loaded for each setting, and its T(N)."""

from collections.abc import Callable, Iterable, Mapping
from functools import cache

from msgspec import Struct, structs

from nearfree.core.boundary import median
from nearfree.core.label import setting_key
from nearfree.core.modules.engine import ENGINE
from nearfree.core.plan import MeasurePlan
from nearfree.core.setting import Setting
from nearfree.derive.granularity.engine import (
    EngineForward,
    EngineRules,
    Products,
    forward_of,
)
from nearfree.derive.granularity.resolve import Resolver, memoised
from nearfree.derive.tables.engine_steps import is_loaded_for
from nearfree.derive.work_model.engine import EngineCurve
from nearfree.errors import EvidenceError, NearfreeError
from nearfree.log.curves import curve_samples, curves
from nearfree.log.events import EngineLoaded, Event, LatencyMeasured
from nearfree.log.evidence import Take, first_start, read_scope
from nearfree.log.names import Layout


class LoggedForward(Struct, frozen=True):
    """A setting that an engine ran in a scope: events and T(N) in us by N of its newest take."""

    setting: Setting
    loaded: Event
    first_id: str
    latency_us: dict[int, float]
    baseline: int

    @property
    def forward(self) -> EngineForward:
        """The forward without N."""
        return forward_of(self.setting, self.loaded.data)

    @property
    def name(self) -> str:
        """The name, unique among the forwards of a platform, release and number of threads."""
        setting = self.setting
        stored = "" if setting.repack else " not repacked"
        return f"{setting.model} {setting.file_type}{stored} b={setting.batch} L={setting.context}"


class EngineLog:
    """The forwards of engines in a log, with their releases' rules; each scope is read once."""

    def __init__(self, layout: Layout, resolver: Resolver) -> None:
        self._layout = layout
        self.forwards: Callable[[str], Mapping[str, LoggedForward]] = cache(self._forwards)
        """Returns a scope's forwards by the key of their setting."""
        products: Products = {}
        self.rules: Callable[[EngineForward], EngineRules] = memoised(
            lambda forward: EngineRules(forward, resolver, products)
        )
        """Returns the rules of a forward's release, resolved for its matrices.

        It raises NearfreeError as `EngineRules`.
        """

    def _forwards(self, scope: str) -> dict[str, LoggedForward]:
        kinds = (EngineLoaded, LatencyMeasured)
        streams = {take.stream for take in self._layout.takes(scope)}
        return _newest(
            take
            for stream in sorted(streams)
            if self._runs_engines(scope, stream)
            for take in read_scope(self._layout, scope, stream=stream, only=kinds)
        )

    def forward(self, scope: str, key: str) -> EngineForward:
        """Return the forward of a setting; EvidenceError if no take recorded what was loaded."""
        forward = self.forwards(scope).get(key)
        if forward is None:
            raise EvidenceError(
                f"no take of {scope} recorded what the engine loaded",
                remedy="Measure the study again",
            )
        return forward.forward

    def curves(self, scope: str) -> list[EngineCurve]:
        """Return the curves of a scope, sorted by name, if their release has rules."""
        engine_curves = []
        for key, forward in self.forwards(scope).items():
            try:
                rules = self.rules(forward.forward)
            except NearfreeError:
                continue  # a curve without rules cannot calibrate
            engine_curves.append(
                EngineCurve(
                    name=forward.name,
                    key=key,
                    platform=scope,
                    rules=rules,
                    baseline=forward.baseline,
                    latency_us=forward.latency_us,
                    event_id=forward.first_id,
                )
            )
        return sorted(engine_curves, key=lambda curve: (curve.name, curve.key))

    def event_ids(self, scope: str) -> set[str]:
        """Return the events behind a scope's answers."""
        forwards = self.forwards(scope).values()
        return {
            event_id
            for forward in forwards
            for event_id in (forward.loaded.event_id, forward.first_id)
        }

    def _runs_engines(self, scope: str, stream: str) -> bool:
        """Return whether a stream has forwards of engines, by the plan of its first take."""
        first = next(take for take in self._layout.takes(scope) if take.stream == stream)
        started = first_start(self._layout, first)
        plan = started.plan if started is not None else None
        sweeps = plan.sweeps if isinstance(plan, MeasurePlan) else ()
        return any(sweep.setting.module == ENGINE.name for sweep in sweeps)


def _newest(takes: Iterable[Take]) -> dict[str, LoggedForward]:
    forwards: dict[str, LoggedForward] = {}
    for take in sorted(takes, key=lambda take: take.order):
        loaded = take.events_of(EngineLoaded)
        for curve in curves([take]):
            fields = structs.asdict(curve.setting)
            events = [event for event in loaded if is_loaded_for(event.data, fields)]
            samples = curve_samples(curve)
            if curve.setting.module == ENGINE.name and events and samples.whole:
                forwards[setting_key(curve.setting)] = LoggedForward(
                    setting=curve.setting,
                    loaded=events[-1],
                    first_id=curve.first_id,
                    latency_us={
                        n: median(sorted(by_round.values()))
                        for n, by_round in samples.rounds.items()
                        if by_round
                    },
                    baseline=samples.baseline,
                )
    return forwards
