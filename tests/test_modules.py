"""The complete workflow over every module: tables, figures and report."""

import json
import shutil
from pathlib import Path

import polars as pl
import pytest
from once import made_once

from workflow import ROOT, Project, make_project

pytestmark = pytest.mark.slow
BOUNDARIES = "results/tables/cpu/boundaries.parquet"


@pytest.fixture(scope="module")
def modules(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """Return a project whose workflow ran over three modules and the control."""

    def make(folder: Path) -> None:
        project = make_project(folder)
        shutil.copy(ROOT / "tests/configs/modules/studies.yaml", project / "config/studies.yaml")
        project.snakemake()

    return Project(made_once(tmp_path_factory, "modules", make))


def table(project: Project, name: str) -> pl.DataFrame:
    """Return a table of this machine."""
    return pl.read_parquet(project / "results/tables/cpu" / f"{name}.parquet")


def test_every_setting_has_its_boundary(modules: Project) -> None:
    """Each module, routing and protocol has boundaries at every tolerance, with its baseline."""
    boundaries = table(modules, "boundaries")
    assert boundaries.height == (2 + 2 + 4 + 1) * 5
    assert set(boundaries["module"]) == {"dense_ffn", "attention", "moe_ffn"}
    balanced = boundaries.filter(routing="balanced", backend="torch_padded")
    assert set(balanced.select("top_k", "baseline").rows()) == {(2, 4), (4, 2)}
    assert balanced["n_max_from_1"].null_count() == 0
    assert boundaries.filter(routing="skewed")["n_max_from_1"].null_count() == 10


def test_every_point_has_its_work(modules: Project) -> None:
    """Each measured point has its counted work, with utilisation from its own latency."""
    work, latency = table(modules, "work"), table(modules, "latency")
    keys = ["stream", "setting_key", "n"]
    assert set(work.select(keys).rows()) == set(latency.select(keys).rows())
    assert set(work["source"]) == {"counted"}
    assert work["compute_utilization"].null_count() == 0
    padded = work.filter(backend="torch_padded", routing="skewed", top_k=2, n=1)
    assert padded["flop_executed"].item() == 16 * padded["flop_logical"].item()


def test_protocols_stand_beside_each_other(modules: Project) -> None:
    """Each row has its protocol, and only the adaptive protocol has a resolution."""
    latency = table(modules, "latency")
    streams = set(latency.select("stream", "protocol", "resolution").rows())
    assert streams == {
        ("dense_ffn", "adaptive", 1.15),
        ("attention", "adaptive", 1.15),
        ("moe", "adaptive", 1.15),
        ("moe_unpadded", "paper", None),
    }


def test_every_figure_family_is_drawn(modules: Project) -> None:
    """Each module has its latency, boundary, sensitivity, work and utilisation figures."""
    listed = json.loads((modules / "results/figures/cpu/figures.json").read_text())
    names = {figure["name"] for figure in listed["figures"]}
    for module, own in (("dense_ffn", "batch"), ("moe_ffn", "top_k"), ("attention", "context")):
        families = {"latency_against_n", f"nmax_against_{own}", "sensitivity",
                    f"utilization_against_{own}", "utilization_against_n"}  # fmt: skip
        if module != "dense_ffn":
            families |= {"intensity_against_n", "flop_against_n"}
        assert {f"{module}_{family}" for family in families} <= names


def test_the_report_tells_what_never_ran_and_what_measuring_cost(modules: Project) -> None:
    """The page lists each adapter with its runs, and each take with its seconds."""
    page = (modules / "results/report/index.html").read_text()
    assert "cpu: run; cuda: never run" in page
    assert "Cost of measuring" in page
    assert "0 damaged, 0 notices" in modules.nearfree("verify")


def test_a_new_shape_is_one_job(modules: Project, tmp_path: Path) -> None:
    """Another context is another plan of its study: it is measured, and no other study is."""
    project = modules.copy(tmp_path / "project")
    project.edit("config/studies.yaml", "context: [128, 512]", "context: [128, 512, 1024]")
    assert project.jobs()["measure"] == 1
    project.snakemake(BOUNDARIES)
    boundaries = table(project, "boundaries").filter("newest", module="attention")
    assert sorted(set(boundaries["context"])) == [128, 512, 1024]
