"""What can happen to a job, as SLURM or its node does it."""

from slurm.cluster import Cluster
from slurm.jobs import Job


def requeue(slurm: Cluster, job: Job) -> None:
    """Preempt a job: SLURM ends it and queues it again under the same number."""
    slurm.run("scontrol", "requeue", job.id)


def kill(slurm: Cluster, job: Job) -> None:
    """Kill what a job runs, without a warning."""
    slurm.run("scancel", "--signal=KILL", f"{job.id}.0")


def terminate(slurm: Cluster, job: Job) -> None:
    """Ask a job's processes to stop, as SLURM does when the job's time is over."""
    slurm.run("scancel", "--signal=TERM", job.id)


def restart_slurmd(slurm: Cluster, job: Job) -> None:
    """Kill the daemon of a job's node and start it again; the job lives on meanwhile."""
    slurm.kill_slurmd(job.node)
    slurm.start_slurmd(job.node)


def lose_node(slurm: Cluster, job: Job) -> None:
    """Kill everything on a job's node and start the node again, as after a power cut."""
    slurm.kill_slurmd(job.node)
    slurm.kill_jobs(job.node)
    slurm.start_slurmd(job.node)


def lose_sight(slurm: Cluster, job: Job) -> None:
    """Let SLURM forget a job that goes on: a second one is started beside it."""
    slurm.kill_slurmd(job.node)
    slurm.orphan_jobs(job.node)
    slurm.start_slurmd(job.node)


FAULTS = (requeue, kill, terminate, restart_slurmd, lose_node, lose_sight)
AGAIN = (requeue, lose_node)
"""Those after which SLURM itself starts the job again, under its number."""
ANEW = (kill, terminate)
"""Those after which the job failed, and the workflow submits another."""
