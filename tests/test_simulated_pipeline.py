"""Simulated GPUs through the real workflow: a root of their own, and never said as measured."""

import re
import shutil
from pathlib import Path

import polars as pl
import pytest
from derive.tables.logs import write_probe
from nearfree.core.label import setting_key
from nearfree.hardware.simulated import read_machine
from nearfree.log.names import Layout
from nearfree.measure.simulated import SimulatedKernel
from once import made_once

from workflow import ROOT, Project, make_project

pytestmark = pytest.mark.slow
RECORDED = ("public/constants", "sources/vllm_0_33_0")
CURVES, RESULTS = "simulated/curves", "simulated/results"
ROOTED = ("--config", f"results={RESULTS}")


@pytest.fixture(scope="module")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """Return a project that predicted curves and ran the whole workflow on them."""

    def make(folder: Path) -> None:
        project = make_project(folder, "simulated")
        for name in RECORDED:
            recorded = ROOT / "results" / "events" / name
            shutil.copytree(recorded, project / f"{RESULTS}/events" / name)
        project.nearfree("predict", "--curves", CURVES, "--results", RESULTS)
        project.snakemake(*ROOTED)

    return Project(made_once(tmp_path_factory, "simulated", make))


@pytest.fixture
def project(simulated: Project, tmp_path: Path) -> Project:
    """Return a copy to change."""
    return simulated.copy(tmp_path / "project")


def table(project: Project, scope: str, name: str) -> pl.DataFrame:
    """Return a table of a platform."""
    return pl.read_parquet(project / f"{RESULTS}/tables/{scope}/{name}.parquet")


def test_everything_ran_and_verifies(simulated: Project) -> None:
    """The second run has nothing to do, and every byte of the root is accounted for."""
    assert simulated.jobs(*ROOTED) == {}
    assert "0 damaged, 0 notices" in simulated.nearfree("verify", "--results", RESULTS)
    assert not (simulated / "results").exists()


@pytest.mark.parametrize("scope", ["h20", "h800"])
def test_every_own_row_is_simulated(simulated: Project, scope: str) -> None:
    """The origin is on every row of what was timed, and on no other."""
    for name in ("latency", "boundaries", "sensitivity", "work", "validation", "predictions"):
        rows = table(simulated, scope, name)
        assert set(rows["origin"]) == {"simulated"}, name
    assert set(table(simulated, scope, "latency")["timer"]) == {"simulated"}


@pytest.mark.parametrize("scope", ["h20", "h800"])
def test_boundaries_are_those_of_the_curves(simulated: Project, scope: str) -> None:
    """N_max of each setting and tolerance is that of its curve without noise, to the interval."""
    machine = read_machine(simulated / f"{CURVES}/{scope}.json", scope)
    curves = {setting_key(curve.setting): curve for curve in machine.file.curves}
    boundaries = table(simulated, scope, "boundaries").to_dicts()
    assert len(boundaries) == 2 * len(curves)
    for row in boundaries:
        curve = curves[row["setting_key"]]
        kernel = SimulatedKernel(curve.setting, curve.n, machine)
        limit = (1 + row["epsilon"]) * kernel.latency_us(row["baseline"])
        truth = max(n for n in curve.n if kernel.latency_us(n) <= limit)
        assert row["n_low"] <= truth <= row["n_high"]
        assert row["verdict"] == "undecided" or row["n_max"] == truth


def test_the_page_says_simulated_and_never_measured(simulated: Project) -> None:
    """A banner stands at the top, headings say the origin, and figures, too."""
    page = (simulated / f"{RESULTS}/report/index.html").read_text()
    assert page.index("<strong>Simulated.</strong>") < page.index("<main>")
    assert re.findall(r"<h2>(h\w+: .*?)</h2>", page) == [
        "h20: NVIDIA H20 (simulated) <small>simulated</small>",
        "h800: NVIDIA H800 (simulated) <small>simulated</small>",
    ]
    sections = re.findall(r'<section id="platform-.*?</section>', page, re.DOTALL)
    assert len(sections) == 2
    assert not any("measured" in section.lower() for section in sections)
    for path in (simulated / f"{RESULTS}/figures/h20").glob("*.svg"):
        drawn = path.read_text()
        assert "measured" not in drawn.lower(), path.name
        assert ">Simulated: " in drawn, path.name


def test_a_real_machine_stays_out_of_the_root(project: Project) -> None:
    """Probing this machine into the simulated root is refused, in one line with a remedy."""
    project.edit("config/config.yaml", "here: [h20, h800]\ncurves: simulated/curves", "here: [cpu]")
    before = project.digests(RESULTS)
    done = project.run("nearfree", "probe", "cpu", "--results", RESULTS)
    assert (done.returncode, done.stdout) == (2, "")
    assert "holds simulated takes of h20" in done.stderr
    assert "--results" in done.stderr
    assert project.digests(RESULTS) == before


def test_a_simulated_machine_stays_out_of_a_real_root(project: Project) -> None:
    """Where a real machine was probed, no simulated take is written."""
    write_probe(Layout(project / "results"))
    done = project.run("nearfree", "probe", "h20")
    assert (done.returncode, done.stdout) == (2, "")
    assert "holds measured takes of cpu" in done.stderr


def test_another_curve_file_is_run_again(project: Project) -> None:
    """A changed curve file asks for new takes of its platform, and of no other."""
    path = project / f"{CURVES}/h800.json"
    path.write_text(path.read_text().replace('"cores":132', '"cores":132 '))
    jobs = project.jobs(*ROOTED)
    assert (jobs["probe"], jobs["measure"]) == (1, 1)
    assert jobs["project"] == 1


def test_a_missing_curve_file_is_said_before_anything_runs(project: Project) -> None:
    """Without a platform's curve file the workflow ends with the command that writes it."""
    (project / f"{CURVES}/h20.json").unlink()
    done = project.run("snakemake", "--cores", "2", "-n", *ROOTED)
    assert done.returncode != 0
    assert "nearfree predict --curves" in done.stdout + done.stderr
