"""T(N) of an engine's setting, made of what was measured."""

from types import SimpleNamespace
from typing import Any

from conftest import make_setting
from msgspec.structs import replace
from nearfree.core.protocols import Thinned
from nearfree.derive.tune.curve import engine_curve
from nearfree.log.curves import Curve, Visits
from nearfree.log.events import LatencyMeasured


def visit(place: int, n: int, *, dirty: bool) -> Any:
    """Return a visit to N of one thread, whose wall time is twice its CPU time where disturbed."""
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


def test_a_long_forward_that_was_always_disturbed_is_not_missing() -> None:
    """Where no visit to an N was clean its CPU time stands in; elsewhere wall time stands."""
    events = [visit(2 * number, 1, dirty=False) for number in range(4)]
    events += [visit(1, 49, dirty=True), visit(3, 49, dirty=True)]
    found = engine_curve(curve_of(events))
    assert found.timer == "wall"
    assert found.n == (1, 49)
    assert found.t_us == (100.0, 4900.0)
