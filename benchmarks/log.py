"""The event log: 100,000 events by 8 writers, synced every 50, against a plain buffered write."""

import multiprocessing
import tempfile
import time
from pathlib import Path

from nearfree.core.plan import MeasurePlan, Sweep
from nearfree.core.protocols import Interleaved
from nearfree.core.setting import Setting
from nearfree.derive.tables.project import project
from nearfree.log.events import LatencyMeasured
from nearfree.log.names import Layout
from nearfree.log.run import describe_run
from nearfree.log.take import OpenTake, ensure_take, take_name
from nearfree.log.verify import verify
from nearfree.measure.rounds import whole_rounds

WRITERS, EVENTS, DURABLE = 8, 100_000, 50
POSITIONS = tuple(range(1, 26))


def write(root: Path, writer: int, *, events: int = EVENTS) -> None:
    """Write one writer's share of the events, in a stream of its own."""
    setting = Setting(
        module="dense_ffn",
        backend="torch",
        dtype="bfloat16",
        batch=writer + 1,
        d_model=2048,
        d_ff=4608,
    )
    rounds = events // WRITERS // len(POSITIONS)
    plan = MeasurePlan(
        sweeps=(Sweep(setting=setting, positions=POSITIONS),),
        protocol=Interleaved(rounds=rounds),
        environment="cpu",
    )

    def observe(take: OpenTake) -> None:
        for index in range(rounds * len(POSITIONS)):
            n = POSITIONS[index % len(POSITIONS)]
            data = LatencyMeasured(
                setting=setting,
                n=n,
                baseline=1,
                round=index // len(POSITIONS),
                order=index % len(POSITIONS),
                wall_us=(4350.123 + n, 4312.2 + n, 4500.1 + n),
                process_us=(4350.1, 4322.1, 4511.1),
                dirty=(False, False, False),
                cache="cold",
                protocol=plan.protocol,
                load_1m=0.3,
            )
            take.append(data, sync=index % DURABLE == DURABLE - 1)

    layout = Layout(root)
    name = take_name("cpu", f"writer_{writer}", 1, plan)
    ensure_take(
        layout, name, plan, lambda n: describe_run("benchmark", plan, n), observe, keep=whole_rounds
    )


def plain_write_s(source: Path, target: Path) -> float:
    """Write the same bytes to plain buffered files, one after the other; return the seconds."""
    contents = [path.read_bytes() for path in sorted(source.rglob("*.jsonl"))]
    start_s = time.perf_counter()
    for number, raw in enumerate(contents):
        with (target / str(number)).open("wb") as file:
            for line in raw.splitlines(keepends=True):
                file.write(line)
    return time.perf_counter() - start_s


def warm_up(root: Path) -> None:
    """Project a small log first, so that imports are not part of the time."""
    write(root, 0, events=WRITERS * len(POSITIONS) * 3)
    project(Layout(root), "cpu", {})


def main() -> None:
    """Print each step's seconds and its ratio to the plain write."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder, "results")
        start_s = time.perf_counter()
        workers = [multiprocessing.Process(target=write, args=(root, i)) for i in range(WRITERS)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        seconds = {"write, durable": time.perf_counter() - start_s}
        start_s = time.perf_counter()
        summary = verify(root)
        seconds["verify"] = time.perf_counter() - start_s
        if summary.damaged or summary.events < EVENTS:
            raise SystemExit(f"the log is not whole: {summary}")
        warm_up(Path(folder, "small"))
        start_s = time.perf_counter()
        project(Layout(root), "cpu", {})
        seconds["project to tables"] = time.perf_counter() - start_s
        plain_s = plain_write_s(root / "events", Path(folder))
    print(f"{EVENTS:,} events by {WRITERS} writers, durable every {DURABLE}")
    print(f"{'plain buffered write':24}{plain_s:8.3f} s")
    for name, value in seconds.items():
        print(f"{name:24}{value:8.3f} s {value / plain_s:8.1f} x plain")


if __name__ == "__main__":
    main()
