"""The cluster itself: it allocates its GPUs, lists its jobs, and notices a lost node."""

from pathlib import Path

import pytest

from slurm.cluster import Cluster
from slurm.conf import GPUS
from slurm.jobs import Job

SAY = "echo $SLURMD_NODENAME ${CUDA_VISIBLE_DEVICES-none} $SLURM_JOB_GPUS"


def submit(slurm: Cluster, folder: Path, *options: str, script: str = SAY) -> str:
    """Submit a job that writes into a folder and return its number."""
    output = f"--output={folder}/%j.txt"
    return slurm.run("sbatch", "--parsable", output, *options, "--wrap", script).strip()


def ended(slurm: Cluster, number: str) -> Job:
    """Return a job once it completed."""
    slurm.wait(lambda: slurm.job(number).state == "COMPLETED", message=f"job {number} is not over")
    return slurm.job(number)


@pytest.mark.parametrize("gpu", GPUS)
def test_every_type_of_gpu_is_allocated_on_its_node(slurm, tmp_path, gpu):
    """A job that asks for a GPU type runs on its node and gets GPU 0."""
    number = submit(slurm, tmp_path, "--partition=gpu", f"--gpus={gpu}:1")
    job = ended(slurm, number)
    assert (job.node, job.gpus) == (gpu, f"gpu:{gpu}:1")
    assert (tmp_path / f"{number}.txt").read_text() == f"{gpu} 0 0\n"


def test_a_job_without_a_gpu_is_told_of_none(slurm, tmp_path):
    """On the node without a GPU the variable is not set at all."""
    number = submit(slurm, tmp_path)
    assert ended(slurm, number).node == "cpu"
    assert (tmp_path / f"{number}.txt").read_text() == "cpu none\n"


def test_the_list_of_jobs_holds_what_each_asked_for(slurm, tmp_path):
    """Name, partition, memory, minutes and CPUs come back as they were given."""
    options = ("--job-name=mine", "--comment=a_b", "--mem=2G", "--time=7", "--cpus-per-task=2")
    job = ended(slurm, submit(slurm, tmp_path, *options))
    assert (job.name, job.comment, job.partition) == ("mine", "a_b", "cpu")
    assert (job.memory_mb, job.minutes, job.cpus, job.restarts) == (2048, 7, 2, 0)
    assert job in slurm.jobs()


def test_a_node_that_dies_is_noticed_and_its_job_starts_again(slurm, tmp_path):
    """When a node's daemon and jobs are killed, the job restarts once the node is back."""
    number = submit(
        slurm, tmp_path, "--partition=h20", script="sleep $((60 - 60 * ${SLURM_RESTART_COUNT:-0}))"
    )
    slurm.wait(lambda: slurm.runs("h20"))
    slurm.kill_slurmd("h20")
    slurm.kill_jobs("h20")
    slurm.wait(lambda: "h20" not in slurm.idle(), message="h20 seems idle")
    slurm.start_slurmd("h20")
    assert ended(slurm, number).restarts == 1


def test_a_drained_node_is_put_back(slurm, tmp_path):
    """A node that SLURM takes no work for waits for somebody; then its next job runs."""
    slurm.run("scontrol", "update", "nodename=h20", "state=drain", "reason=Kill task failed")
    number = submit(slurm, tmp_path, "--partition=h20")
    slurm.wait(lambda: slurm.drained() == {"h20"}, message="h20 is not drained")
    slurm.resume_drained()
    assert ended(slurm, number).node == "h20"
    assert not slurm.drained()
