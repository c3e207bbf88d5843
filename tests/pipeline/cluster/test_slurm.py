"""SLURM's commands where SLURM is not, or is not set up."""

import pytest
from nearfree.errors import SchedulerError
from nearfree.pipeline.cluster.check import require_slurm, slurm
from nearfree.pipeline.cluster.node import last_line


def test_a_machine_without_slurm_is_told_so(monkeypatch, tmp_path) -> None:
    """Without SLURM's commands on PATH the message names SLURM and what to do."""
    monkeypatch.setenv("PATH", str(tmp_path))
    for call in (require_slurm, lambda: slurm("squeue")):
        with pytest.raises(SchedulerError, match="SLURM is not here") as caught:
            call()
        assert "login node" in caught.value.remedy


def put(folder, name: str, script: str) -> None:
    """Put a command on PATH."""
    path = folder / name
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)


def test_a_refusal_says_what_slurm_said(monkeypatch, tmp_path) -> None:
    """A failing command is quoted by its last line; for sbatch the config is named as a cause."""
    for name, remedy in (("sbatch", "config/cluster.yaml"), ("squeue", "scontrol ping")):
        put(tmp_path, name, "echo first >&2; echo 'no such partition' >&2; exit 1")
        monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
        with pytest.raises(SchedulerError, match=f"refused {name}: no such partition") as caught:
            slurm(name)
        assert remedy in caught.value.remedy


def test_a_controller_that_is_down_is_told(monkeypatch, tmp_path) -> None:
    """`scontrol ping` ends well where a controller is down, so its words are read."""
    put(tmp_path, "sbatch", "exit 0")
    put(tmp_path, "scontrol", "echo 'Slurmctld(primary) at n is DOWN'")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    with pytest.raises(SchedulerError, match=r"SLURM is down: .* is DOWN"):
        require_slurm()


def test_one_controller_that_is_up_is_enough(monkeypatch, tmp_path) -> None:
    """A backup that is down is no reason to submit nothing."""
    put(tmp_path, "sbatch", "exit 0")
    put(tmp_path, "scontrol", "echo 'Slurmctld(primary) at a is UP\nSlurmctld(backup) is DOWN'")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    require_slurm()


def test_a_controller_that_does_not_answer_is_not_waited_for(monkeypatch, tmp_path) -> None:
    """A command that hangs is given up, by name."""
    put(tmp_path, "squeue", "exec sleep 60")
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    with pytest.raises(SchedulerError, match="does not answer: squeue"):
        slurm("squeue", timeout_s=0.2)


def test_the_last_line_that_says_something() -> None:
    """Blank lines at the end are no answer."""
    assert last_line("a\nb\n\n") == "b"
    assert last_line("\n") == "it said nothing"
