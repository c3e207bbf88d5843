"""Takes of a real engine: what they hold, in which order, and what an interruption leaves."""

import os
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

import nearfree
import pytest
from conftest import read_sealed
from engines.conftest import Real
from nearfree.decoders.ranks.modules import ATTENTION, BETWEEN, DENSE, HEAD, OUTPUT, QKV
from nearfree.engines import kernel
from nearfree.engines.forward import EngineKernel
from nearfree.errors import EvidenceError
from nearfree.log.events import (
    EngineLoaded,
    LatencyMeasured,
    Payload,
    RunFinished,
    RunStarted,
    SharesMeasured,
    WorkCounted,
)
from nearfree.log.names import Layout
from nearfree.log.reader import read_segment
from nearfree.log.seal import Seal
from nearfree.log.take import take_name
from nearfree.log.verify import verify
from nearfree.measure import engine_shares
from nearfree.measure.visits import Point
from once import one_in

from measure import engine_takes
from measure.engine_takes import POINTS, ROUNDS

TESTS = Path(__file__).parents[1]
ENVIRONMENT = {"PYTHONPATH": os.pathsep.join((str(Path(nearfree.__file__).parents[1]), str(TESTS)))}
Kind = TypeVar("Kind", bound=Payload)
WATCHED = (1, 2)
"""Each N of the study that is the baseline times a power of two."""
MOMENTS = [
    ("EngineLoaded", 1),
    ("WorkCounted", 3),
    ("LatencyMeasured", POINTS + 2),
    ("SharesMeasured", 3),
]
"""After how many events of a kind a take is killed."""
EVERY_SHARE = 2 * len(WATCHED) * engine_shares.ROUNDS


@pytest.fixture
def known(layout: Layout) -> Layout:
    """Return a log that knows this machine."""
    return engine_takes.known(layout)


@pytest.fixture(scope="module")
def measured(real: Real, tmp_path_factory: pytest.TempPathFactory) -> tuple[Layout, Seal]:
    """Return a take of the engine that nothing interrupted."""
    layout = engine_takes.known(Layout(tmp_path_factory.mktemp("engine") / "results"))
    return layout, engine_takes.take(layout)


def of(layout: Layout, seal: Seal, kind: type[Kind]) -> list[Kind]:
    """Return the payloads of one type of a sealed take."""
    return [event.data for event in read_sealed(layout, seal) if isinstance(event.data, kind)]


def test_what_was_loaded_comes_first(measured: tuple[Layout, Seal], real: Real) -> None:
    """A take begins with the loaded engine, once for each weight order; then work, then times."""
    layout, seal = measured
    kinds = [type(event.data) for event in read_sealed(layout, seal)]
    assert kinds == [
        RunStarted,
        *[EngineLoaded] * 2,
        *[WorkCounted] * POINTS,
        *[LatencyMeasured] * POINTS * ROUNDS,
        *[SharesMeasured] * EVERY_SHARE,
        RunFinished,
    ]
    loads = of(layout, seal, EngineLoaded)
    assert [load.repack for load in loads] == [True, False]
    assert {load.weights_sha256 for load in loads} == {real.weights.sha256}  # type: ignore[union-attr]
    assert {load.model for load in loads} == {real.study.model}
    assert loads[0].library_sha256


def test_a_take_of_an_engine_verifies(measured: tuple[Layout, Seal]) -> None:
    """Nothing of it is damaged, and the file of the weights is not in the log."""
    layout, _ = measured
    assert verify(layout.root).findings == ()
    assert sum(p.stat().st_size for p in layout.root.rglob("*") if p.is_file()) < 1 << 20


@pytest.mark.slow
def test_each_visit_is_timed_by_both_clocks(measured: tuple[Layout, Seal]) -> None:
    """Each point has wall time and process time in every round."""
    visits = of(*measured, LatencyMeasured)
    assert Counter((v.setting.repack, v.n, v.round) for v in visits) == Counter(
        (repack, n, number)
        for repack in (True, False) for n in (1, 2, 3) for number in range(ROUNDS)
    )  # fmt: skip
    for visit in visits:
        assert len(visit.wall_us) == len(visit.process_us) == len(visit.dirty)
        assert min(visit.wall_us) > 1000
        assert min(visit.process_us) > 1000
        assert (visit.timer, visit.launch, visit.key_length) == ("cpu", "eager", 8 + visit.n)


def test_a_point_s_kernels_are_its_formats(measured: tuple[Layout, Seal]) -> None:
    """The work of each point is on record with the formats that are multiplied by."""
    work = of(*measured, WorkCounted)
    assert {event.kernels for event in work} == {("mul_mat q4_1", "mul_mat q8_0")}
    assert len({event.work.flop_logical for event in work}) == 3


def test_shares_are_of_known_modules(measured: tuple[Layout, Seal]) -> None:
    """A share's parts are those of a dense model, positive, at the baseline and its doublings."""
    shares = of(*measured, SharesMeasured)
    assert Counter((s.setting.repack, s.n, s.round) for s in shares) == Counter(
        (repack, n, number)
        for repack in (True, False) for n in WATCHED for number in range(engine_shares.ROUNDS)
    )  # fmt: skip
    for event in shares:
        assert set(event.part_us) == {ATTENTION, BETWEEN, DENSE, HEAD, OUTPUT, QKV}
        assert all(us > 0 for us in event.part_us.values())
        assert event.timer == "cpu"


def test_the_timed_seconds_hold_all_forwards(measured: tuple[Layout, Seal]) -> None:
    """The seconds inside forwards are at least those timed and watched, and fit into the run's."""
    layout, seal = measured
    (end,) = of(layout, seal, RunFinished)
    timed = sum(us for event in of(layout, seal, LatencyMeasured) for us in event.wall_us)
    parts = sum(us for event in of(layout, seal, SharesMeasured) for us in event.part_us.values())
    assert end.timed_s is not None
    assert (timed + parts) / 1e6 < end.timed_s <= end.wall_s


def test_what_is_made_for_shares_is_no_second_of_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """A context that is watched is made before the clock runs: its first share is one as others."""
    now = [0.0]

    class Slow(EngineKernel):
        cache = "cold"

        def forward(self, n: int) -> None: ...
        def finite(self, n: int) -> bool:
            return n > 0

        def work(self, n: int) -> Any: ...
        def operations(self) -> tuple[str, ...]:
            return ()

        def loaded(self) -> Any: ...

        def ready_shares(self) -> None:
            now[0] += 100

        def shares(self, n: int) -> dict[str, float]:
            now[0] += n
            return {ATTENTION: 1.0}

    monkeypatch.setattr(engine_shares.time, "perf_counter", lambda: now[0])
    appended = list[SharesMeasured]()
    take: Any = SimpleNamespace(
        events=[], append=lambda data, **_: appended.append(data), sync=lambda: None
    )
    sweep = engine_takes.plan().sweeps[0]
    point = Point(sweep.setting, sweep.baseline, 1, Slow())
    assert engine_shares.measure_shares(take, [point]) == engine_shares.ROUNDS == len(appended)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "count"),
    MOMENTS[one_in(2, "engine")],
)
def test_a_killed_take_goes_on(kind: str, count: int, known: Layout, real: Real) -> None:
    """After a kill a take goes on where it was durable: nothing twice, and nothing lacking."""
    done = subprocess.run(
        [sys.executable, "-m", "measure.engine_takes", str(known.root), kind, str(count)],
        env=os.environ | ENVIRONMENT,
        check=False,
    )
    assert done.returncode == -signal.SIGKILL
    seal = engine_takes.take(known)
    assert [event.repack for event in of(known, seal, EngineLoaded)] == [True, False]
    once: dict[type[Payload], int] = {
        WorkCounted: POINTS, LatencyMeasured: POINTS * ROUNDS, SharesMeasured: EVERY_SHARE
    }  # fmt: skip
    for event_type, many in once.items():
        events: list[Any] = of(known, seal, event_type)
        places = [(x.setting.repack, x.n, getattr(x, "round", 0)) for x in events]
        assert len(places) == len(set(places)) == many
    assert not verify(known.root).damaged
    if kind == "LatencyMeasured":
        name = take_name("cpu", "engine", 1, engine_takes.plan())
        second = read_segment(known.segment(name, 2), name.segment(2)).events
        again = [e for e in second if isinstance(e.data, LatencyMeasured)]
        assert len(again) == POINTS * (ROUNDS - 1)


WITHOUT_TORCH = """
import sys
from pathlib import Path

class Hook:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "torch":
            raise ModuleNotFoundError(f"{name} is forbidden here", name=name)

sys.meta_path.insert(0, Hook())
from measure import engine_takes
from nearfree.log.names import Layout
print(engine_takes.take(Layout(Path(sys.argv[1]))).outcome, "torch" in sys.modules)
"""


@pytest.mark.slow
def test_an_engine_is_measured_without_torch(known: Layout, real: Real) -> None:
    """A complete take of an engine is sealed where torch cannot be imported."""
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH, str(known.root)],
        env=os.environ | ENVIRONMENT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.stdout.split() == ["complete", "False"], done.stderr


def test_numbers_that_are_not_finite_seal_nothing(
    known: Layout, real: Real, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A forward whose logits are not finite ends the take, and what is sealed stays."""
    monkeypatch.setattr(kernel.math, "isfinite", lambda _: False)
    with pytest.raises(EvidenceError, match="over N=1 gives output that is not finite"):
        engine_takes.take(known)
    assert [take.stream for take in known.takes("cpu")] == ["hardware"]


@pytest.mark.slow
def test_too_little_memory_seals_nothing(
    known: Layout, real: Real, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a model does not fit, the take ends with one error before anything is timed."""
    monkeypatch.setattr(kernel, "free_host_bytes", lambda: 1 << 20)
    with pytest.raises(EvidenceError, match="GB are free"):
        engine_takes.take(known)
    monkeypatch.undo()
    assert of(known, engine_takes.take(known), RunFinished)
