"""Scale: a change touches what follows from it alone, and memory grows little with a log.

Times at full size are measured by benchmarks/scale.py.
"""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from workflow import ROOT, Project

pytestmark = pytest.mark.slow

MADE = (
    *("project", "boundaries", "predictions", "validation", "engine_steps", "tuning", "claims"),
    "figures",
)
PROJECTED = """
import resource, sys
from pathlib import Path
from nearfree.log.names import Layout
from nearfree.derive.tables.project import project

project(Layout(Path("results")), "h20", {})
kib = 1 if sys.platform == "linux" else 1 / 1024
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * kib)
"""


def python(folder: Path, code: str) -> str:
    """Run code in a folder, in a process of its own, and return what it printed."""
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'workflow'}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def peak_kib(folder: Path, events: int) -> float:
    """Return the most memory that projecting a take of so many events needs, all Python's too."""
    folder.mkdir()
    python(folder, f"from benchmarks.fleet import fill_large; fill_large(0, {events})")
    return float(python(folder, PROJECTED))


def test_an_event_costs_less_memory_than_its_line(tmp_path: Path) -> None:
    """Projecting 50,000 events needs less than 45 MB more than projecting 5,000: 1 kB an event."""
    small, large = peak_kib(tmp_path / "small", 5_000), peak_kib(tmp_path / "large", 50_000)
    assert large - small < 45_000


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """Return a fleet of two platforms with a study of each module, tables and figures made."""
    folder = tmp_path_factory.mktemp("fleet") / "project"
    make = f"from benchmarks.fleet import make_fleet; make_fleet(Path({str(folder)!r}), 2, 3, 20)"
    python(ROOT, f"from pathlib import Path; {make}")
    tiny = ROOT / "tests" / "configs" / "tiny"
    for name in ("deployments.yaml", "sources.yaml"):
        shutil.copy(tiny / name, folder / "config")
    project = Project(folder)
    for scope in platforms(project):
        python(folder, f"from benchmarks.fleet import fill; fill({scope!r})")
    project.snakemake(*platforms(project))
    return project


def platforms(fleet: Project) -> list[str]:
    """Return the platforms of a fleet."""
    return sorted(path.stem for path in (fleet / "curves").iterdir())


def state(fleet: Project, scope: str) -> dict[str, tuple[str, int]]:
    """Return the digest and the time of every table and figure but those of one platform."""
    base = fleet / "results"
    digests = {
        f"{part}/{name}": digest
        for part in ("tables", "figures")
        for name, digest in fleet.digests(f"results/{part}").items()
        if not name.startswith(f"{scope}/")
    }
    return {name: (digest, (base / name).stat().st_mtime_ns) for name, digest in digests.items()}


@pytest.mark.slow
def test_a_retaken_platform_touches_no_other(fleet: Project) -> None:
    """After a retake that the library sealed, only that platform's tables and figures are made."""
    assert fleet.jobs(*platforms(fleet)) == {}
    changed, *others = platforms(fleet)
    before, own = state(fleet, changed), fleet.digests(f"results/tables/{changed}")
    fleet.nearfree("retake", changed)
    python(fleet.folder, f"from benchmarks.fleet import fill; fill({changed!r})")
    assert fleet.jobs(*others) == {}
    listed = fleet.snakemake("-n", *platforms(fleet))
    assert set(re.findall(r"wildcards: scope=(\w+)$", listed, re.MULTILINE)) == {changed}
    assert fleet.jobs(changed) == dict.fromkeys((changed, *MADE), 1)
    fleet.snakemake(changed)
    assert state(fleet, changed) == before
    assert fleet.digests(f"results/tables/{changed}") != own


@pytest.mark.slow
def test_simulated_numbers_are_never_called_measured(fleet: Project) -> None:
    """Every row of a fleet's tables that has an origin is simulated."""
    scope = platforms(fleet)[0]
    read = f"""
import polars as pl
for name in ("latency", "work", "settings", "boundaries", "sensitivity"):
    frame = pl.read_parquet(f"results/tables/{scope}/{{name}}.parquet")
    print(name, *frame["origin"].unique())
"""
    lines = python(fleet.folder, read).splitlines()
    assert [line.split()[1:] for line in lines] == [["simulated"]] * 5
