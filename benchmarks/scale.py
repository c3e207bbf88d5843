"""Seconds and memory of the workflow over a fleet, and of projecting one very large scope.

python -m benchmarks.scale fleet FOLDER         100 platforms x 40 studies x 250 points
python -m benchmarks.scale projection FOLDER    10 million events of one scope
"""

import argparse
import os
import resource
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import psutil
from nearfree.config.files import Config
from nearfree.config.plans import raise_takes
from nearfree.log.document import replace
from nearfree.log.names import Layout

from benchmarks.fleet import ROOT, derive, fill, fill_large, make_fleet

PROCESSES = 2


def each(work: Callable[[Any], None], scopes: Iterable[Any]) -> None:
    """Do something to every scope, in processes of their own."""
    with get_context("spawn").Pool(PROCESSES, maxtasksperchild=20) as pool:
        pool.map(work, scopes, chunksize=1)


def snakemake(*options: str) -> list[str]:
    """Return the command of a workflow run."""
    return [sys.executable, "-m", "snakemake", "--cores", str(PROCESSES), *options]


def nearfree(*words: str) -> list[str]:
    """Return one of this program's commands."""
    return [sys.executable, "-m", "nearfree", *words]


def run(label: str, command: list[str]) -> str:
    """Run a command; print its time, and the most memory that its processes had together."""
    began, before, most = time.perf_counter(), _cpu_s(), 0
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    said: list[str] = []
    reader = threading.Thread(target=lambda: said.append(process.stdout.read()))  # type: ignore[union-attr]
    reader.start()
    while process.poll() is None:
        most = max(most, _memory(process.pid))
        time.sleep(0.05)
    reader.join()
    seconds, mb = time.perf_counter() - began, most / 1e6
    print(f"{label:28}{seconds:8.1f} s {_cpu_s() - before:8.1f} CPU s {mb:8.0f} MB", flush=True)
    if process.returncode:
        raise SystemExit(said[0][-3000:])
    return said[0]


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _memory(pid: int) -> int:
    try:
        root = psutil.Process(pid)
        return sum(_rss(each) for each in (root, *root.children(recursive=True)))
    except psutil.NoSuchProcess:
        return 0


def _rss(process: psutil.Process) -> int:
    try:
        return int(process.memory_info().rss)
    except psutil.NoSuchProcess:
        return 0


def times(below: Path, without: str) -> dict[Path, int]:
    """Return when each file below a folder was changed, without those of one scope."""
    files = (path for path in below.rglob("*") if path.is_file())
    return {path: path.stat().st_mtime_ns for path in files if without not in path.parts}


def copied(scope: str, scopes: Iterable[str]) -> None:
    """Give platforms another one's tables and figures, which no run that is measured reads."""
    for name in scopes:
        for kind in ("tables", "figures"):
            shutil.copytree(Path("results", kind, scope), Path("results", kind, name))


def change(scope: str) -> None:
    """Take everything of one platform again, but for its probe."""
    raise_takes(Config(Path("config")), Layout(Path("results")), scope)
    fill(scope)


def fleet(platforms: int, studies: int, points: int, made: int) -> None:
    """Measure the workflow over a fleet.

    Parameters
    ----------
    made
        Platforms whose tables and figures are made. If it is not all of them, there is no report.
    """
    scopes = make_fleet(Path.cwd(), platforms, studies, points)
    began = time.perf_counter()
    each(fill, scopes)
    print(f"{'filling':28}{time.perf_counter() - began:8.1f} s", flush=True)
    began = time.perf_counter()
    each(derive, ["public", "sources", *scopes[:made]])
    print(f"{f'tables of {made}':28}{time.perf_counter() - began:8.1f} s", flush=True)
    copied(scopes[0], scopes[made:])
    if made < platforms:
        replace(Path("results/report/index.html"), b"")
    else:
        run("report", nearfree("report"))
    run("ledger", nearfree("ledger"))
    run("marking all as made", snakemake("--touch", "--forceall"))
    run("dry run", snakemake("-n"))
    if "Nothing to be done" not in run("no-op", snakemake()):
        raise SystemExit("the workflow found something to do where nothing changed")
    change(scopes[0])
    before = times(Path("results"), scopes[0])
    run("one changed platform", snakemake(scopes[0]))
    if times(Path("results"), scopes[0]) != before:
        raise SystemExit("files of other platforms were touched")


def projection(takes: int, events: int) -> None:
    """Measure the projection of one scope."""
    began = time.perf_counter()
    Path("config").symlink_to(ROOT / "config")
    each(partial(fill_large, events=events // takes), range(takes))
    print(f"{'filling':28}{time.perf_counter() - began:8.1f} s", flush=True)
    run(f"project {events:,} events", nearfree("tables", "project", "h20"))


def main() -> None:
    """Run one of the two in a folder that does not exist yet."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("fleet", "projection"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--platforms", type=int, default=100)
    parser.add_argument("--studies", type=int, default=40)
    parser.add_argument("--points", type=int, default=250, help="of a study")
    parser.add_argument("--made", type=int, default=2, help="platforms with tables of their own")
    parser.add_argument("--events", type=int, default=10_000_000)
    parser.add_argument("--takes", type=int, default=40)
    args = parser.parse_args()
    args.folder.mkdir(parents=True)
    os.chdir(args.folder)
    if args.what == "fleet":
        fleet(args.platforms, args.studies, args.points, min(args.made, args.platforms))
    else:
        projection(args.takes, args.events)


if __name__ == "__main__":
    main()
