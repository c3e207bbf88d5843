"""Time and memory of the workflow over a fleet, and of projecting one very large scope.

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


def run_parallel(function: Callable[[Any], None], scopes: Iterable[Any]) -> None:
    """Call a function on every scope, in child processes."""
    with get_context("spawn").Pool(PROCESSES, maxtasksperchild=20) as pool:
        pool.map(function, scopes, chunksize=1)


def snakemake(*options: str) -> list[str]:
    """Return the command of a workflow run."""
    return [sys.executable, "-m", "snakemake", "--cores", str(PROCESSES), *options]


def nearfree(*words: str) -> list[str]:
    """Return one of this program's commands."""
    return [sys.executable, "-m", "nearfree", *words]


def run(label: str, command: list[str]) -> str:
    """Run a command; print its time and its processes' peak memory; return its output."""
    start_s, cpu_before_s, peak_bytes = time.perf_counter(), _cpu_s(), 0
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    output: list[str] = []
    reader = threading.Thread(target=lambda: output.append(process.stdout.read()))  # type: ignore[union-attr]
    reader.start()
    while process.poll() is None:
        peak_bytes = max(peak_bytes, _memory(process.pid))
        time.sleep(0.05)
    reader.join()
    seconds, mb = time.perf_counter() - start_s, peak_bytes / 1e6
    cpu_s = _cpu_s() - cpu_before_s
    print(f"{label:28}{seconds:8.1f} s {cpu_s:8.1f} CPU s {mb:8.0f} MB", flush=True)
    if process.returncode:
        raise SystemExit(output[0][-3000:])
    return output[0]


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _memory(pid: int) -> int:
    try:
        root = psutil.Process(pid)
        return sum(_rss(run_parallel) for run_parallel in (root, *root.children(recursive=True)))
    except psutil.NoSuchProcess:
        return 0


def _rss(process: psutil.Process) -> int:
    try:
        return int(process.memory_info().rss)
    except psutil.NoSuchProcess:
        return 0


def modification_times(folder: Path, excluded_scope: str) -> dict[Path, int]:
    """Return the modification time of each file below a folder, except those of one scope."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return {path: path.stat().st_mtime_ns for path in files if excluded_scope not in path.parts}


def copy_derived(scope: str, scopes: Iterable[str]) -> None:
    """Copy a platform's tables and figures to others, whose content no measured run reads."""
    for name in scopes:
        for kind in ("tables", "figures"):
            shutil.copytree(Path("results", kind, scope), Path("results", kind, name))


def retake(scope: str) -> None:
    """Fill new takes of all studies of one platform, except its probe."""
    raise_takes(Config(Path("config")), Layout(Path("results")), scope)
    fill(scope)


def fleet(platforms: int, studies: int, points: int, derived: int) -> None:
    """Measure the workflow over a fleet.

    Parameters
    ----------
    derived
        Number of platforms whose tables and figures are made; if not all, no report is made.
    """
    scopes = make_fleet(Path.cwd(), platforms, studies, points)
    start_s = time.perf_counter()
    run_parallel(fill, scopes)
    print(f"{'filling':28}{time.perf_counter() - start_s:8.1f} s", flush=True)
    start_s = time.perf_counter()
    run_parallel(derive, ["public", "sources", *scopes[:derived]])
    print(f"{f'tables of {derived}':28}{time.perf_counter() - start_s:8.1f} s", flush=True)
    copy_derived(scopes[0], scopes[derived:])
    if derived < platforms:
        replace(Path("results/report/index.html"), b"")
    else:
        run("report", nearfree("report"))
    run("ledger", nearfree("ledger"))
    run("marking all as made", snakemake("--touch", "--forceall"))
    run("dry run", snakemake("-n"))
    if "Nothing to be done" not in run("no-op", snakemake()):
        raise SystemExit("the workflow found something to do where nothing changed")
    retake(scopes[0])
    before = modification_times(Path("results"), scopes[0])
    run("one changed platform", snakemake(scopes[0]))
    if modification_times(Path("results"), scopes[0]) != before:
        raise SystemExit("files of other platforms were touched")


def projection(takes: int, events: int) -> None:
    """Measure the projection of one scope."""
    start_s = time.perf_counter()
    Path("config").symlink_to(ROOT / "config")
    run_parallel(partial(fill_large, events=events // takes), range(takes))
    print(f"{'filling':28}{time.perf_counter() - start_s:8.1f} s", flush=True)
    run(f"project {events:,} events", nearfree("tables", "project", "h20"))


def main() -> None:
    """Run one of the two benchmarks in a new folder."""
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
