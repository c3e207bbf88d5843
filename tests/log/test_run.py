"""The record of a run: who ran what, without what is private."""

import re
import subprocess
from pathlib import Path

import pytest
from conftest import make_plan
from msgspec import json
from nearfree.backends.environments.lock import environment_sha256
from nearfree.core.plan import plan_digest
from nearfree.log import run as run_module
from nearfree.log.line import sha256
from nearfree.log.run import describe_run, scheduler, versions

PLAN = make_plan()
IDENTITY = ["-c", "user.name=n", "-c", "user.email=e"]


def git(*args: str) -> str:
    """Run git in the folder of the test."""
    return subprocess.run(["git", *args], check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Change into an empty folder that counts as the code's, outside of any batch job."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(run_module, "CLONE", tmp_path)
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", "/dev/null")
    for name in ("SLURM_JOB_ID", "SLURM_JOB_GPUS", "SLURM_STEP_GPUS", "NEARFREE_HOST_LABEL"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def test_outside_of_a_repository_the_commit_is_unknown() -> None:
    """Without a repository neither the commit nor the dirty flag is guessed."""
    run = describe_run("nearfree measure", PLAN, 2)
    assert (run.commit, run.dirty) == (None, None)
    assert (run.command, run.attempt) == ("nearfree measure", 2)
    assert (run.plan, run.plan_digest) == (PLAN, plan_digest(PLAN))
    assert (run.host_label, run.scheduler, run.lock_sha256) == ("unnamed", None, None)
    assert re.fullmatch("[0-9a-f]{16}", run.code_digest)


def test_without_git_the_commit_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without git gives a record, too."""
    monkeypatch.setenv("PATH", "")
    assert describe_run("nearfree measure", PLAN, 1).commit is None


def test_dirty_means_our_own_code(project: Path) -> None:
    """The flag is up when the project's code differs from the commit, not for other files."""
    git("init", "--quiet")
    (project / "workflow").mkdir()
    (project / "workflow" / "a.py").write_text("1\n")
    git("add", "workflow")
    git(*IDENTITY, "commit", "--quiet", "-m", "first")
    (project / "results").mkdir()
    (project / "results" / "new").touch()
    run = describe_run("nearfree measure", PLAN, 1)
    assert (run.commit, run.dirty) == (git("rev-parse", "HEAD"), False)
    (project / "workflow" / "a.py").write_text("2\n")
    assert describe_run("nearfree measure", PLAN, 1).dirty is True


def test_another_repository_is_not_the_code_s(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A repository around the working folder or the installation gives no commit."""
    git("init", "--quiet")
    git(*IDENTITY, "commit", "--quiet", "--allow-empty", "-m", "first")
    installed = project / "lib"
    installed.mkdir()
    monkeypatch.setattr(run_module, "CLONE", installed)
    run = describe_run("nearfree tune", PLAN, 1)
    assert (run.commit, run.dirty) == (None, None)


def test_the_lock_of_the_environment_is_on_record(project: Path) -> None:
    """The record holds the digest of the lock that the interpreter was made from."""
    (project / "envs").mkdir()
    (project / "envs" / "vllm.lock").write_bytes(b"vllm==1\n")
    assert describe_run("x", PLAN, 1, environment="vllm").lock_sha256 == sha256(b"vllm==1\n")
    assert describe_run("x", PLAN, 1).lock_sha256 is None


def test_the_batch_job_is_on_record(monkeypatch: pytest.MonkeyPatch) -> None:
    """Inside a batch job its id, restarts, node, partition and devices are on record."""
    assert scheduler() is None
    for name, value in {
        "SLURM_JOB_ID": "17",
        "SLURM_RESTART_COUNT": "2",
        "SLURMD_NODENAME": "n01",
        "SLURM_JOB_PARTITION": "gpu",
        "CUDA_VISIBLE_DEVICES": "0,1",
        "SLURM_JOB_GPUS": "4,6",
    }.items():
        monkeypatch.setenv(name, value)
    job = describe_run("x", PLAN, 1).scheduler
    assert job is not None
    assert (job.system, job.job_id, job.restart, job.node) == ("slurm", "17", "2", "n01")
    assert (job.partition, job.devices, job.gpus) == ("gpu", "0,1", "4,6")


@pytest.mark.parametrize(
    ("variables", "gpus"),
    [
        ({}, None),
        ({"SLURM_JOB_GPUS": ""}, None),
        ({"SLURM_STEP_GPUS": "3"}, "3"),
        ({"SLURM_JOB_GPUS": "", "SLURM_STEP_GPUS": "3"}, "3"),
        ({"SLURM_JOB_GPUS": "2,3", "SLURM_STEP_GPUS": "3"}, "2,3"),
    ],
)
def test_the_gpus_of_a_job_are_those_of_its_node(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], gpus: str | None
) -> None:
    """GPU ids are the node's, from the job or else the step; a job without GPUs has none."""
    monkeypatch.setenv("SLURM_JOB_ID", "17")
    monkeypatch.setenv("SLURM_RESTART_COUNT", "0")  # else SLURM is asked, and waited for
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    job = scheduler()
    assert job is not None
    assert job.gpus == gpus


def test_what_is_installed_is_on_record() -> None:
    """The record holds one digest of all that the interpreter has installed."""
    run = describe_run("x", PLAN, 1)
    assert run.environment_sha256 == environment_sha256()


def test_a_step_asks_how_often_its_job_was_started(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Without a restart count in the environment, SLURM is queried; without SLURM it is unknown."""
    monkeypatch.setenv("SLURM_JOB_ID", "17")
    monkeypatch.setenv("PATH", str(tmp_path))
    job = scheduler()
    assert job is not None
    assert job.restart is None
    arguments_file = tmp_path / "scontrol"
    arguments_file.write_text('#!/bin/sh\necho "JobId=$4 Requeue=1 Restarts=3 BatchFlag=1"\n')
    arguments_file.chmod(0o755)
    job = scheduler()
    assert job is not None
    assert (job.job_id, job.restart) == ("17", "3")


def test_the_host_has_the_label_that_its_user_chose(monkeypatch: pytest.MonkeyPatch) -> None:
    """The host's own name is not recorded; a label is, if the user gives one that is not empty."""
    for label, recorded in (("bench-1", "bench-1"), ("", "unnamed")):
        monkeypatch.setenv("NEARFREE_HOST_LABEL", label)
        assert describe_run("x", PLAN, 1, device="CPU").host_label == recorded


def test_versions_are_those_installed() -> None:
    """The versions of what can change a measurement are recorded, absent packages left out."""
    installed = versions()
    assert "msgspec" in installed
    assert "sglang" not in installed
    assert all(re.match(r"[0-9]+\.[0-9]", version) for version in installed.values())


def test_a_record_holds_no_private_text(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A record holds neither the home folder, nor the user's name, nor a path of the machine."""
    monkeypatch.setenv("HOME", str(project / "someone"))
    monkeypatch.setenv("USER", "someone")
    text = json.encode(describe_run("nearfree measure cpu", PLAN, 1)).decode()
    assert "someone" not in text
    assert str(project) not in text
    assert "://" not in text
