"""Small factories that the tests share: settings, plans, payloads, and complete takes on disk."""

import gc
import itertools
import os
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import hypothesis
import pytest
from msgspec import json
from nearfree.config.files import Config
from nearfree.core.plan import MeasurePlan, Plan, Sweep, plan_digest
from nearfree.core.protocols import Interleaved
from nearfree.core.setting import Setting
from nearfree.log.events import Event, LatencyMeasured, Payload, RunFinished, RunStarted
from nearfree.log.names import Layout, TakeName
from nearfree.log.reader import read_segment
from nearfree.log.seal import Seal, iter_sealed, seal_segment, write_receipt, write_seal
from nearfree.log.segment import SegmentWriter
from nearfree.log.take import OpenTake, ensure_take, take_name
from nearfree.measure.rounds import whole_rounds
from nearfree.sources.fetching.cache import Cache, default_cache
from once import ALL, made_once, session_folder, shared, turn

from workflow import NO_NETWORK, ROOT, Project, make_project

if TYPE_CHECKING:
    from selenium.webdriver import Chrome

# Each job of a workflow is a process, which would otherwise compile all that it imports.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
# Thousands of tests live to the end: to look among them for what is garbage takes seconds.
gc.set_threshold(100_000, 50, 100)
# A slow machine breaks no rule, and a commit draws a share of the examples.
hypothesis.settings.register_profile("any_machine", deadline=None, max_examples=100 if ALL else 30)
hypothesis.settings.load_profile("any_machine")

CLOCK = "2026-01-02T03:04:05.678901Z"
"""The time of every event that `write_payloads` writes."""
Work = Callable[[OpenTake], float | None]


COVERING = ("tests/log/", "tests/derive/", "tests/core/", "tests/preregister/", "tests/golden/")
"""The tests that count for the coverage of `nearfree.log` and `nearfree.derive`."""
WAITING = ("tests/slurm/",)
LONG = (
    "tests/derive/work_model/test_recorded.py",
    "tests/public/test_real_tables.py",
    "tests/sources/test_real_history.py",
)
SLOW_FIXTURES = {"built", "slurm", "machine", "browser", "history", "own"}
"""What runs the whole workflow, SLURM, a browser, or the stages of nine ledgers."""


MOST_CASES = 3
"""Of a test's cases as many are not slow, which the commit draws."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark as slow what rests on a slow fixture, and a test's cases beyond those that are drawn.

    Counting lines doubles the time of an interpreter, so no slow test counts, but its fixtures.
    """
    cases: dict[str, list[pytest.Item]] = {}
    for item in items:
        if SLOW_FIXTURES & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.slow)
        cases.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for name, those in () if ALL else cases.items():
        first = turn(len(those), name)
        for item in (those[first:] + those[:first])[MOST_CASES:]:
            item.add_marker(pytest.mark.slow)
    for item in items:
        if item.get_closest_marker("slow") and item.nodeid.startswith(COVERING):
            item.add_marker(pytest.mark.no_cover)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """Count lines, with --cov, in the packages' own tests alone.

    To turn that off and on takes a millisecond: it stays as it is from one such test to the next.
    """
    counting = getattr(item.config.pluginmanager.getplugin("_cov"), "cov_controller", None)
    counts = item.nodeid.startswith(COVERING)
    if counting is not None and counting.started != counts:
        turned = counting.resume if counts else counting.pause
        turned()
    return (yield)


@pytest.fixture(autouse=True)
def same_numbers_in_any_order() -> None:
    """Let torch draw the same numbers in each test, whatever ran before."""
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(0)


@pytest.hookimpl(specname="pytest_collection_modifyitems", trylast=True)
def pytest_long_ones_come_first(items: list[pytest.Item]) -> None:
    """Put SLURM's tests first, and minutes of computing at the head of the second worker's part.

    SLURM's wait, one cluster at a time, while other workers compute.
    """
    begun: dict[tuple[str, ...], list[pytest.Item]] = {WAITING: [], LONG: [], (): []}
    for item in items:
        begun[next(names for names in begun if item.nodeid.startswith(names or ""))].append(item)
    waiting, long, others = begun.values()
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    at = max(len(items) // workers - len(waiting), 0)
    items[:] = [*waiting, *others[:at], *long, *others[at:]]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print at the end, with -q too, the slowest files and the option for the same order again."""
    seconds: Counter[str] = Counter()
    for report in itertools.chain.from_iterable(terminalreporter.stats.values()):
        if isinstance(report, pytest.TestReport):
            seconds[report.nodeid.partition("::")[0]] += report.duration
    for name, spent in seconds.most_common(10):
        terminalreporter.write_line(f"{spent:6.0f} s {name}")
    seed = terminalreporter.config.getoption("randomly_seed", None)
    terminalreporter.write_line(f"order: --randomly-seed={seed}")


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """Return a project whose default workflow ran once; copy it before changing anything."""

    def make(folder: Path) -> None:
        project = make_project(folder)
        project.snakemake()

    return Project(made_once(tmp_path_factory, "built", make))


RECORDED = (
    *("public/constants", "sources/vllm_0_33_0", "sources/vllm_graphs_0_33_0"),
    "sources/flashinfer_python_0_6_13",
)
DEPLOYED = """
moe:
  models: [qwen3_30b_a3b]
  platforms: [h100]
  attention: [flashinfer-python==0.6.13]
  moe: [vllm==0.33.0]
  batch: [1, 64]
  context: [1024, 16384]

graphs:
  models: [qwen3_30b_a3b]
  platforms: [h100]
  attention: [flashinfer-python==0.6.13]
  moe: [vllm==0.33.0]
  batch: [1, 64]
  context: [1024]
  graphs: vllm==0.33.0
"""


@pytest.fixture(scope="session")
def answering(built: Project, tmp_path_factory: pytest.TempPathFactory) -> Project:
    """Return that project with the rules and constants that an MoE model on a GPU needs.

    The repository has them on record; the workflow ran without a network.
    """

    def make(folder: Path) -> None:
        project = built.copy(folder)
        for name in RECORDED:
            shutil.copytree(ROOT / "results/events" / name, project / "results/events" / name)
        (project / "config/deployments.yaml").write_text(DEPLOYED)
        releases = "releases: [vllm==0.33.0, flashinfer-python==0.6.13]"
        (project / "config/sources.yaml").write_text(releases)
        with pytest.MonkeyPatch.context() as patch:
            for name, value in NO_NETWORK.items():
                patch.setenv(name, value)
            project.snakemake()

    return Project(made_once(tmp_path_factory, "answering", make))


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator["Chrome"]:
    """Return a headless browser for all tests of this process."""
    from browsing import start  # which needs selenium

    driver = start(tmp_path_factory.mktemp("profile"))
    yield driver
    driver.quit()


@pytest.fixture(scope="session")
def published(tmp_path_factory: pytest.TempPathFactory) -> Layout:
    """Return a results root with the paper's values and their tables; copy it to add more."""
    from derive.tables.logs import make_tables, write_public  # which imports this file

    def make(folder: Path) -> None:
        write_public(Layout(folder))
        make_tables(Layout(folder), "public")

    return Layout(made_once(tmp_path_factory, "published", make))


@pytest.fixture(scope="session")
def source_cache(tmp_path_factory: pytest.TempPathFactory) -> Cache:
    """Return a cache with the user's fetched files, which it keeps by their hash.

    What all sessions fetch, they fetch once; what is read from it is read once a session, by the
    code at hand, for all workers: the cache begins without results.
    """
    own = session_folder(tmp_path_factory) / "sources"
    for name in ("blobs", "releases"):
        folder = default_cache() / name
        folder.mkdir(parents=True, exist_ok=True)
        own.mkdir(exist_ok=True)
        with suppress(FileExistsError):
            (own / name).symlink_to(folder)
    return Cache(own)


class Release(NamedTuple):
    """A results root with the tables of a release, and what was found on the way."""

    layout: Layout
    systems: dict[str, str]
    """The platform of each system."""
    left_out: dict[str, str]


@pytest.fixture(scope="session")
def aiconfigurator(source_cache: Cache, tmp_path_factory: pytest.TempPathFactory) -> Release:
    """Return AIConfigurator's release 0.12.0 as it is imported, half a gigabyte, to be read."""
    from nearfree.public.aiconfigurator import import_aiconfigurator

    def make(folder: Path) -> None:
        layout, platforms = Layout(folder / "results"), Config(ROOT / "config").platforms
        done = import_aiconfigurator(layout, platforms, cache=source_cache, version="0.12.0")
        assert done.seal.outcome == "complete"
        assert done.fresh is not None
        systems = {system.name: system.platform for system in done.fresh.systems}
        (folder / "found.json").write_bytes(json.encode((systems, done.fresh.left_out)))

    folder = shared(tmp_path_factory, "aiconfigurator", make)
    return Release(Layout(folder / "results"), *json.decode((folder / "found.json").read_bytes()))


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    """Return an empty results root."""
    return Layout(tmp_path / "results")


def make_setting(**changes: Any) -> Setting:
    """Return a small dense FFN setting with some of its fields changed."""
    fields: dict[str, Any] = {
        "module": "dense_ffn",
        "backend": "torch_cpu",
        "dtype": "float32",
        "d_model": 64,
        "d_ff": 128,
    }
    return Setting(**(fields | changes))


def make_plan(
    *, positions: tuple[int, ...] = (1, 2, 4), rounds: int = 3, **changes: Any
) -> MeasurePlan:
    """Return a plan of one sweep; `changes` go to its setting."""
    sweep = Sweep(setting=make_setting(**changes), positions=positions)
    return MeasurePlan(sweeps=(sweep,), protocol=Interleaved(rounds=rounds), environment="cpu")


def make_started(plan: Plan, attempt: int = 1) -> RunStarted:
    """Return the record of a run, the same on every machine."""
    return RunStarted(
        command="nearfree measure cpu dense",
        plan=plan,
        plan_digest=plan_digest(plan),
        attempt=attempt,
        commit="0123456789abcdef0123456789abcdef01234567",
        dirty=False,
        code_digest="0123456789abcdef",
        python="3.11.0",
        versions={"msgspec": "0.0.0"},
        lock_sha256=None,
        host_label="unnamed",
    )


def make_latency(number: int = 0, n: int = 1, **changes: Any) -> LatencyMeasured:
    """Return the samples of one visit: round `number`, position count `n`."""
    samples = len(changes.get("wall_us", (0, 0)))
    fields: dict[str, Any] = {
        "setting": make_setting(),
        "n": n,
        "baseline": 1,
        "round": number,
        "order": 0,
        "wall_us": (12.5 + n, 12.25 + n),
        "process_us": (12.0 + n,) * samples,
        "dirty": (False,) * samples,
        "cache": "cold",
        "protocol": Interleaved(rounds=3),
    }
    return LatencyMeasured(**(fields | changes))


def latencies(take: OpenTake) -> list[tuple[int, int]]:
    """Return the (round, n) of everything that a take kept of its earlier attempts."""
    payloads = (event.data for event in take.events)
    return [(data.round, data.n) for data in payloads if isinstance(data, LatencyMeasured)]


def read_sealed(layout: Layout, seal: Seal) -> list[Event]:
    """Return a sealed take's events, in order."""
    return list(iter_sealed(layout, seal))


def measure_rounds(take: OpenTake) -> float:
    """Append what a measure plan still lacks after the kept rounds, a durable event at a time."""
    assert isinstance(take.plan, MeasurePlan)
    points = [(sweep.setting, n) for sweep in take.plan.sweeps for n in sweep.positions]
    for number in range(len(latencies(take)) // len(points), take.plan.protocol.rounds):
        for setting, n in points:
            take.append(make_latency(number, n, setting=setting))
    return 0.5


def write_take(
    layout: Layout,
    *,
    scope: str = "cpu",
    stream: str = "dense",
    take: int = 1,
    plan: Plan | None = None,
    work: Work = measure_rounds,
) -> Seal:
    """Make sure that a take is sealed, the way the program does it."""
    plan = plan or make_plan()
    name = take_name(scope, stream, take, plan)
    return ensure_take(
        layout, name, plan, lambda attempt: make_started(plan, attempt), work, keep=whole_rounds
    )


def write_payloads(layout: Layout, name: TakeName, plan: Plan, *payloads: Payload) -> Seal:
    """Seal payloads between a start and an end under a fixed clock: the same bytes every time."""
    with SegmentWriter(layout, name, 1, now=lambda: CLOCK) as writer:
        for payload in (
            make_started(plan),
            *payloads,
            RunFinished(outcome="complete", wall_s=1.5),
        ):
            writer.append(payload, sync=False)
    segment = read_segment(writer.path, writer.name)
    part = seal_segment(writer.path, segment, 1, len(segment.events))
    seal = Seal(
        scope=name.scope,
        stream=name.stream,
        take=name.take,
        plan_digest=plan_digest(plan),
        outcome="complete",
        segments=(part,),
    )
    write_seal(layout, seal)
    write_receipt(layout, name)
    return seal
