"""The options that sbatch gets for a job, and the check of a cluster's nodes."""

import time
from pathlib import Path
from typing import Any

import pytest
from nearfree.config.cluster import Cluster, JobResources
from nearfree.config.files import Config
from nearfree.log.codebase import package_digest
from nearfree.pipeline.cluster.check import _faults, _notes, _state, accounting, options, wait
from nearfree.pipeline.cluster.node import NodeState

from workflow import ROOT

PLATFORMS = Config(ROOT / "config").platforms


def test_only_what_is_said_is_asked_for() -> None:
    """A job without words gives no option; each field gives its own."""
    assert options(JobResources()) == []
    job = JobResources(
        partition="gpu", gpus=2, gpu_model="h20", cpus=8, memory_gb=3, exclusive=True
    )
    assert options(job) == [
        "--partition=gpu",
        "--gpus=h20:2",
        "--cpus-per-task=8",
        "--mem=3000",
        "--exclusive",
    ]
    assert options(JobResources(memory_gb=3, memory_gb_max=2)) == ["--mem=2000"]


def test_no_gpu_is_asked_for_a_cpu() -> None:
    """The options of a CPU's job name no GPU."""
    assert not any(
        "gpu" in option for option in options(Cluster().job_resources("cpu", "cpu", "x"))
    )


def put(folder: Path, name: str, script: str) -> None:
    """Put a command on PATH."""
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def test_a_controller_that_does_not_answer_ends_no_job(monkeypatch, tmp_path: Path) -> None:
    """While squeue fails for another reason than an unknown job, jobs are waited for."""
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    put(tmp_path, "squeue", "echo 'Unable to contact slurm controller' >&2; exit 1")
    put(tmp_path, "scancel", f'echo "$@" >> {tmp_path}/cancelled')
    why = wait({"h20": "7"}, tmp_path, timeout_s=1)
    assert "Unable to contact slurm controller" in why["h20"]
    assert (tmp_path / "cancelled").read_text() == "7\n"


def test_a_job_that_ends_before_it_is_cancelled_hides_no_other(monkeypatch, tmp_path: Path) -> None:
    """An error of scancel about an ended job does not hide errors about others."""
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    put(tmp_path, "squeue", "echo '7|PENDING (Resources)'; echo '8|RUNNING (None)'")
    put(tmp_path, "scancel", "echo 'Job/step already completing or completed' >&2; exit 1")
    why = wait({"h20": "7", "h800": "8"}, tmp_path, timeout_s=1)
    assert why == {
        "h20": "job 7 is PENDING (Resources) after 1 s",
        "h800": "job 8 is RUNNING (None) after 1 s",
    }


def test_a_file_that_shows_late_is_waited_for(monkeypatch, tmp_path: Path) -> None:
    """A job that is over may have left a file that a shared file system does not show yet."""
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    looks = tmp_path / "looks"
    put(
        tmp_path,
        "squeue",
        f"echo x >> {looks}; [ $(wc -l < {looks}) -lt 3 ] || touch {tmp_path}/h20.json; "
        "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1",
    )
    assert wait({"h20": "7"}, tmp_path, timeout_s=60) == {}


def test_a_job_that_runs_is_waited_for(monkeypatch, tmp_path: Path) -> None:
    """However long a job takes that SLURM still lists, only one that is over is given up."""
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr("nearfree.pipeline.cluster.check._VISIBLE_S", 0.1)
    looks = tmp_path / "looks"
    put(
        tmp_path,
        "squeue",
        f"echo x >> {looks}; [ $(wc -l < {looks}) -lt 4 ] || touch {tmp_path}/h20.json; "
        "echo '7|RUNNING (None)'",
    )
    assert wait({"h20": "7"}, tmp_path, timeout_s=60) == {}


def test_a_job_that_left_nothing_is_told_by_its_log(monkeypatch, tmp_path: Path) -> None:
    """An ended job without an answer file has failed; the last line of its log is quoted."""
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setattr("nearfree.pipeline.cluster.check._VISIBLE_S", 0.1)
    put(tmp_path, "squeue", "exit 0")
    (tmp_path / "h20.log").write_text("first\nno module named nearfree\n")
    began = time.monotonic()
    why = wait({"h20": "7"}, tmp_path, timeout_s=600)
    assert time.monotonic() - began < 300
    assert why == {"h20": "job 7 ended without an answer: no module named nearfree"}


def seen(**changes: Any) -> NodeState:
    """Return what a sound node sees."""
    fields: dict[str, Any] = {
        "node": "n1",
        "job_id": "7",
        "partition": "gpu",
        "cpus": 4,
        "visible": "0",
        "gpus": ("NVIDIA H20",),
        "code_digest": package_digest(),
        "locked": True,
        "time_s": time.time(),
        "environments": {"cpu": "", "vllm": ""},
    }
    return NodeState(**(fields | changes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({}, []),
        ({"gpus": (), "visible": "0"}, []),
        ({"gpus": (), "visible": None}, ["the job got no GPU"]),
        ({"gpus": ("NVIDIA H20", "NVIDIA A10")}, ["its GPU is 'NVIDIA A10', the platform's is "]),
        ({"code_digest": "0" * 16}, ["it sees other code than this"]),
        ({"environments": {"cpu": "", "vllm": "no torch"}}, ["environment vllm: no torch"]),
    ],
)
def test_what_is_wrong_on_a_node_is_told(changes: dict[str, Any], message: list[str]) -> None:
    """Another GPU, none, other code and an environment that fails are each told, and nothing else.

    Without a driver's tools a GPU has no name to compare.
    """
    messages = list(_faults(PLATFORMS, "h20", seen(**changes)))
    assert len(messages) == len(message)
    assert all(line.startswith(start) for line, start in zip(messages, message, strict=True))


def test_a_cpu_s_node_needs_no_gpu() -> None:
    """A CPU platform's node may have any GPU or none."""
    assert not list(_faults(PLATFORMS, "cpu", seen(gpus=("NVIDIA A10",), visible=None)))
    assert not list(_faults(PLATFORMS, "cpu", seen(gpus=(), visible=None)))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({}, []),
        ({"locked": False}, ["locks are not seen across nodes"]),
        ({"time_s": 3600.0}, ["its clock is +3600 s off"]),
        ({"time_s": -3600.0}, ["its clock is -3600 s off"]),
        ({"time_s": -300.0, "queued_s": 280.0}, []),
    ],
)
def test_what_is_worth_knowing_of_a_node_is_told(
    changes: dict[str, Any], message: list[str]
) -> None:
    """Locks that end at the node, and a clock that is off by more than the wait in the queue."""
    now = time.time()
    fields = changes | {"time_s": now + changes.get("time_s", 0.0)}
    began_s = now - fields.pop("queued_s", 0.0)
    notes = list(_notes(seen(**fields), began_s))
    assert len(notes) == len(message)
    assert all(line.startswith(start) for line, start in zip(notes, message, strict=True))


@pytest.mark.parametrize(
    ("printed", "kept"),
    [
        ("AccountingStorageType   = accounting_storage/none", False),
        ("AccountingStorageType   = accounting_storage/slurmdbd", True),
        ("ClusterName = none", False),
    ],
)
def test_whether_accounts_are_kept(monkeypatch, tmp_path: Path, printed: str, kept: bool) -> None:  # noqa: FBT001
    """SLURM's configuration decides whether sacct is used; without an entry it is not."""
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    put(tmp_path, "scontrol", f"echo 'AuthType = auth/munge'; echo '{printed}'")
    assert accounting() is kept


@pytest.mark.parametrize("raw", [b"{}", b'{"node":"n1","cpus":"two"}', b""])
def test_an_answer_of_another_version_is_told(tmp_path: Path, raw: bytes) -> None:
    """An unreadable answer of a node with other code is an error without a traceback."""
    (tmp_path / "gpu.json").write_bytes(raw)
    state = _state(tmp_path / "gpu.json")
    assert isinstance(state, str)
    assert state.startswith("its answer is not of this version (")
