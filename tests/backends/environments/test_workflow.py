"""Environments in the workflow: which jobs run in which interpreter, and what makes it first."""

import shutil
import sys
from pathlib import Path

import pytest
from nearfree.backends.environments.lock import Environment
from nearfree.errors import ConfigError
from nearfree.pipeline.pipeline import Pipeline

from backends.environments.tiny import THIS, entry
from workflow import ROOT, Project, make_project

pytestmark = pytest.mark.slow

VLLM = """
moe_a: &moe
  module: moe_ffn
  backend: vllm
  platforms: [h200]
  shape: {d_model: 64, d_ff: 64, experts: 8}
  routing: [balanced]
  top_k: [2]
  positions: [1, 2, 4, 8]
  protocol: {name: adaptive, seconds_max: 1}

moe_b: {<<: *moe, top_k: [4]}
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Project:
    """Change to a project with two studies on a GPU, in an environment that is not made."""
    project_ = make_project(tmp_path / "project")
    project_.edit("config/config.yaml", "here: [cpu]", "here: [cpu, h200]")
    studies = project_ / "config/studies.yaml"
    studies.write_text(studies.read_text() + VLLM)
    monkeypatch.chdir(project_.folder)
    return project_


def pipeline() -> Pipeline:
    """Return the pipeline of the project in the current folder."""
    return Pipeline(Path("results"), Path("config"))


def test_an_environment_is_made_once_for_its_studies(project: Project) -> None:
    """Without anything installed, a dry run has one such job for two studies, none for a CPU."""
    assert project.jobs("h200")["environment"] == 1
    assert "environment" not in project.jobs("cpu")


def test_a_study_runs_in_what_is_made_for_it(project: Project) -> None:
    """The interpreter lies in a folder with the lock's digest; a CPU's is the workflow's own."""
    workflow_pipeline, vllm = pipeline(), Environment("vllm")
    assert workflow_pipeline.python("h200", "moe_a") == str(vllm.python)
    assert workflow_pipeline.environment("h200", "moe_a") == [str(vllm.receipt)]
    (study,) = [
        stream for stream in workflow_pipeline.measure_streams if not stream.startswith("moe")
    ]
    assert workflow_pipeline.python("cpu", study).endswith("python")
    assert workflow_pipeline.environment("cpu", study) == []


def test_the_config_names_another_interpreter(project: Project) -> None:
    """Where config names an interpreter, such as a container's wrapper, nothing is made."""
    project.edit("config/config.yaml", "python: {}", "python: {vllm: ./vllm.sh}")
    assert pipeline().python("h200", "moe_a") == "./vllm.sh"
    assert "environment" not in project.jobs("h200")
    (project / "envs/vllm.lock").unlink()
    assert pipeline().environment("h200", "moe_a") == []


def test_a_project_that_was_moved_makes_its_environments_again(project: Project) -> None:
    """A receipt beside another folder's mark is let go of, where the main process asks."""
    vllm = Environment("vllm")
    vllm.folder.mkdir(parents=True)
    vllm.receipt.touch()
    vllm.mark.write_bytes(vllm.mark_content)
    for renew in (False, True):
        assert pipeline().environment("h200", "moe_a", renew=renew) == [str(vllm.receipt)]
        assert vllm.receipt.exists()
    vllm.mark.write_bytes(vllm.mark_content.replace(str(project.folder).encode(), b"elsewhere"))
    pipeline().environment("h200", "moe_a")
    assert vllm.receipt.exists()
    pipeline().environment("h200", "moe_a", renew=True)
    assert not vllm.receipt.exists()


def test_a_simulated_study_needs_no_environment(project: Project) -> None:
    """What is simulated runs in the workflow's own interpreter, whichever backend it is of."""
    project.edit("config/config.yaml", 'curves: ""', "curves: curves")
    (project / "curves").mkdir()
    for scope in ("cpu", "h200"):
        (project / "curves" / f"{scope}.json").write_text("{}")
    (project / "envs/vllm.lock").unlink()
    assert pipeline().python("h200", "moe_a") == sys.executable
    assert pipeline().environment("h200", "moe_a") == []


def test_an_environment_without_a_lock_is_one_message(project: Project) -> None:
    """A backend in an environment that nothing is known of ends the workflow by its name."""
    (project / "envs/vllm.lock").unlink()
    with pytest.raises(ConfigError, match=r"envs/vllm\.lock"):
        pipeline().python("h200", "moe_a")
    process = project.run("snakemake", "-n", "h200")
    assert process.returncode != 0
    assert "nearfree: error: there is no environment 'vllm'" in process.stdout + process.stderr


@pytest.mark.slow
def test_snakemake_does_not_make_it_twice(project: Project) -> None:
    """Neither a lost receipt nor a forced job touches an environment that is complete."""
    (project / "envs/vllm.lock").write_text("".join(map(entry, ("msgspec", "setuptools"))))
    project.edit("envs/uv.toml", 'python-version = "3.12"', f'python-version = "{THIS}"')
    for part in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / part, project / part)
    vllm = Environment("vllm")
    project.snakemake(str(vllm.receipt))
    assert vllm.complete
    before = vllm.mark.stat()
    vllm.receipt.unlink()
    project.snakemake(str(vllm.receipt))
    project.snakemake("--force", str(vllm.receipt))
    assert vllm.mark.stat() == before


@pytest.mark.slow
def test_a_wrapper_is_an_interpreter(project: Project) -> None:
    """A script that config names runs the measuring command, with the plan on its input."""
    wrapper = project / "wrapper.sh"
    wrapper.write_text(
        f'#!/bin/sh\nexport NEARFREE_HOST_LABEL=wrapped\nexec {sys.executable} "$@"\n'
    )
    wrapper.chmod(0o755)
    project.edit("config/config.yaml", "python: {}", "python: {cpu: ./wrapper.sh}")
    (receipt,) = [path for path in pipeline().evidence("cpu") if "dense" in path]
    project.snakemake(receipt)
    assert '"host_label":"wrapped"' in "".join(
        path.read_text() for path in (project / "results/events/cpu/dense_ffn").glob("*.jsonl")
    )
