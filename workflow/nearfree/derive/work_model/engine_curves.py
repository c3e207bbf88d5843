"""The engines' forwards that a log holds: what was loaded for each setting, and its T(N)."""

from collections.abc import Mapping

from msgspec import Struct

from nearfree.core.boundary import median
from nearfree.core.label import setting_key
from nearfree.core.plan import MeasurePlan
from nearfree.core.setting import Setting
from nearfree.derive.granularity.engine import (
    EngineForward,
    EngineRules,
    Products,
    forward_of,
)
from nearfree.derive.granularity.resolve import Resolver
from nearfree.derive.work_model.engine import EngineCurve
from nearfree.errors import EvidenceError, NearfreeError
from nearfree.log.curves import Curve, curve_samples, curves
from nearfree.log.events import EngineLoaded, Event, LatencyMeasured
from nearfree.log.evidence import Take, first_start, read_scope
from nearfree.log.names import Layout

_ENGINE = "engine"


class LoggedForward(Struct, frozen=True):
    """A setting that an engine ran in a scope: its newest take's events and T(N) in us by N."""

    setting: Setting
    platform: str
    loaded: Event
    first_id: str
    latency_us: dict[int, float]
    baseline: int

    @property
    def forward(self) -> EngineForward:
        """What is known of it besides N."""
        return forward_of(self.setting, self.loaded.data)

    @property
    def name(self) -> str:
        """What tells it from others of a platform, release and threads."""
        setting = self.setting
        stored = "" if setting.repack else " not repacked"
        return f"{setting.model} {setting.file_type}{stored} b={setting.batch} L={setting.context}"


class EngineLog:
    """The engines' forwards of a log, read once a scope, with the rules of their releases."""

    def __init__(self, layout: Layout, resolver: Resolver) -> None:
        self._layout, self._resolver = layout, resolver
        self._scopes: dict[str, dict[str, LoggedForward]] = {}
        self._rules: dict[EngineForward, EngineRules | NearfreeError] = {}
        self._made: Products = {}

    def forwards(self, scope: str) -> Mapping[str, LoggedForward]:
        """Return a scope's forwards by the key of their setting."""
        if scope not in self._scopes:
            kinds = (EngineLoaded, LatencyMeasured)
            streams = {take.stream for take in self._layout.takes(scope)}
            takes = [
                take
                for stream in sorted(streams)
                if self._runs_engines(scope, stream)
                for take in read_scope(self._layout, scope, stream=stream, only=kinds)
            ]
            self._scopes[scope] = _newest(takes)
        return self._scopes[scope]

    def forward(self, scope: str, key: str) -> EngineForward:
        """Return the forward of a setting; EvidenceError if nothing says what was loaded."""
        found = self.forwards(scope).get(key)
        if found is None:
            raise EvidenceError(
                f"no take of {scope} says what the engine loaded", remedy="Measure the study again"
            )
        return found.forward

    def rules(self, forward: EngineForward) -> EngineRules:
        """Return the rules of a forward's release, ready for each of its matrices.

        Raises
        ------
        NearfreeError
            As `EngineRules`.
        """
        if forward not in self._rules:
            try:
                self._rules[forward] = EngineRules(forward, self._resolver, self._made)
            except NearfreeError as error:
                self._rules[forward] = error
        found = self._rules[forward]
        if isinstance(found, NearfreeError):
            raise found.with_traceback(None)
        return found

    def curves(self, scope: str) -> list[EngineCurve]:
        """Return the curves of a scope whose release's rules are known, by name."""
        found = []
        for key, each in self.forwards(scope).items():
            try:
                rules = self.rules(each.forward)
            except NearfreeError:
                continue  # a curve that no rules speak of calibrates nothing
            found.append(
                EngineCurve(
                    name=each.name,
                    key=key,
                    platform=each.platform,
                    rules=rules,
                    baseline=each.baseline,
                    latency_us=each.latency_us,
                    event_id=each.first_id,
                )
            )
        return sorted(found, key=lambda curve: (curve.name, curve.key))

    def event_ids(self, scope: str) -> set[str]:
        """Return the events that a scope's answers rest on."""
        known = self.forwards(scope).values()
        return {event_id for each in known for event_id in (each.loaded.event_id, each.first_id)}

    def _runs_engines(self, scope: str, stream: str) -> bool:
        """Return whether a stream holds forwards of engines, by the plan of its first take."""
        first = next(take for take in self._layout.takes(scope) if take.stream == stream)
        started = first_start(self._layout, first)
        plan = started.plan if started is not None else None
        sweeps = plan.sweeps if isinstance(plan, MeasurePlan) else ()
        return any(sweep.setting.module == _ENGINE for sweep in sweeps)


def _newest(takes: list[Take]) -> dict[str, LoggedForward]:
    found: dict[str, LoggedForward] = {}
    for take in sorted(takes, key=lambda each: each.order):
        loaded = take.of(EngineLoaded)
        for curve in curves([take]):
            events = [event for event in loaded if _is_of(event.data, curve.setting)]
            samples = curve_samples(curve)
            if curve.setting.module == _ENGINE and events and samples.whole:
                found[setting_key(curve.setting)] = LoggedForward(
                    setting=curve.setting,
                    platform=take.name.scope,
                    loaded=events[-1],
                    first_id=curve.first_id,
                    latency_us=_medians(curve),
                    baseline=samples.baseline,
                )
    return found


def _is_of(loaded: EngineLoaded, setting: Setting) -> bool:
    """Return whether what was loaded is what a setting ran."""
    return (loaded.engine, loaded.release, loaded.model, loaded.repack) == (
        setting.backend, setting.release, setting.model, bool(setting.repack),
    )  # fmt: skip


def _medians(curve: Curve) -> dict[int, float]:
    """Return T(N) in microseconds as the table `latency` has it."""
    rounds = curve_samples(curve).rounds
    return {n: median(sorted(by_round.values())) for n, by_round in rounds.items() if by_round}
