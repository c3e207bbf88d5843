"""A cluster from its keys to its last process: one controller and a daemon a node, no systemd."""

import os
import secrets
import shutil
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path

from slurm import daemons, link
from slurm.conf import GPUS, NODES, write_conf
from slurm.daemons import SlurmError, living
from slurm.jobs import Job, parse_jobs

_PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "scontrol")


def lacking() -> str | None:
    """Return the reason why no cluster can run on this machine, or None."""
    for name in _PROGRAMS:
        if shutil.which(name, path=daemons.ENVIRONMENT["PATH"]) is None:
            return f"{name} is missing: apt-get install slurm-wlm munge"
    return None if os.geteuid() == 0 else "the daemons of a cluster need root"


class Cluster:
    """A cluster in its own folder, which is stopped by the pid files there."""

    nodes = NODES

    def __init__(self, folder: Path) -> None:
        self.folder = folder.absolute()

    def start(self) -> None:
        """Start everything and wait until all nodes are idle; SlurmError if that fails.

        A cluster that a crash left behind is stopped first.
        """
        before = link.linked()
        if before:
            Cluster(before).stop()
        self._lay_out()
        link.make_link(write_conf(self.folder))
        try:
            self._start_daemons()
            self.wait(lambda: self.idle() == set(NODES), message="not every node is idle")
        except SlurmError:
            self.stop()
            raise

    def _lay_out(self) -> None:
        folders = (*(f"spool/{node}" for node in NODES), *(f"dev/{gpu}" for gpu in GPUS))
        for name in ("state", *folders):
            (self.folder / name).mkdir(parents=True)
        self.folder.chmod(0o755)
        (self.folder / "munge.key").touch(0o600)
        (self.folder / "munge.key").write_bytes(secrets.token_bytes(128))
        for gpu in GPUS:  # a device like /dev/null: without one no job is told its GPU
            os.mknod(self.folder / "dev" / gpu / "nvidia0", 0o666 | stat.S_IFCHR, os.makedev(1, 3))

    def _start_daemons(self) -> None:
        daemons.start(
            *("munged", "--force", "--num-threads=2"),
            *(f"--{what}-file={self.folder}/munge.{what}" for what in ("key", "log", "seed")),
            *(f"--pid-file={self.folder}/munged.pid", f"--socket={self.folder}/munge.socket"),
        )
        conf = f"{self.folder}/slurm.conf"
        daemons.start("slurmctld", "-f", conf, log=self.folder / "slurmctld.log")
        for node in NODES:
            self.start_slurmd(node)

    def stop(self) -> None:
        """Stop every process of the cluster and take the link away."""
        for node in NODES:
            self.kill_jobs(node)
        for name in (*NODES, "slurmctld", "munged"):
            daemons.stop(self.folder / f"{name}.pid")
        if link.linked() == self.folder:
            link.remove_link()

    def run(self, *command: str) -> str:
        """Run one of SLURM's commands and return what it prints; SlurmError if it fails."""
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SlurmError(f"{' '.join(command)}: {done.stderr.strip()}")
        return done.stdout

    def idle(self) -> set[str]:
        """Return the nodes that wait for work."""
        lines = self.run("sinfo", "--noheader", "--Node", "--format=%N %T").splitlines()
        return {name for name, state in map(str.split, lines) if state == "idle"}

    def drained(self) -> set[str]:
        """Return the nodes that SLURM gives no more work."""
        return set(
            self.run("sinfo", "--noheader", "--Node", "--states=drained", "--format=%N").split()
        )

    def resume_drained(self) -> None:
        """Resume drained nodes, as an administrator does.

        On a loaded machine a killed step whose processes do not end within a minute drains its
        node, and SLURM does not resume it.
        """
        for node in self.drained():
            self.run("scontrol", "update", f"nodename={node}", "state=resume")

    def jobs(self) -> list[Job]:
        """Return every job since the start, those that ended included, oldest first."""
        return list(parse_jobs(self.run("scontrol", "--oneliner", "show", "jobs")))

    def job(self, number: str) -> Job:
        """Return one job."""
        return next(job for job in self.jobs() if job.id == number)

    def wait(
        self, what: Callable[[], object], *, seconds: float = 90, message: str = "it is not so"
    ) -> None:
        """Wait until something is so; SlurmError if it takes too long."""
        daemons.wait(what, seconds, message)

    def start_slurmd(self, node: str) -> None:
        """Start a node's daemon."""
        conf = f"{self.folder}/slurm.conf"
        daemons.start("slurmd", "-f", conf, "-N", node, log=self.folder / f"{node}.log")

    def kill_slurmd(self, node: str) -> None:
        """Kill a node's daemon; what it started lives on."""
        pid_file = self.folder / f"{node}.pid"
        pid = living(pid_file)
        if pid is None:
            raise SlurmError(f"the daemon of {node} does not run")
        daemons.kill(pid)
        self.wait(lambda: living(pid_file) is None)

    def kill_jobs(self, node: str) -> None:
        """Kill every process that a node's daemon started, without asking."""
        for keeper in self._keepers(node):
            for pid in (keeper, *daemons.children(keeper)):
                daemons.kill(pid)

    def orphan_jobs(self, node: str) -> None:
        """Kill the processes that supervise a node's jobs, and not the jobs."""
        for keeper in self._keepers(node):
            daemons.kill(keeper)

    def runs(self, node: str) -> bool:
        """Return whether a job runs on a node, some moments after SLURM reports it."""
        return bool(self._keepers(node))

    def _keepers(self, node: str) -> list[int]:
        sockets = (self.folder / "spool" / node).glob(f"{node}_*.*")
        jobs = {socket.name.removeprefix(f"{node}_").split(".")[0] for socket in sockets}
        return [pid for job in jobs for pid in daemons.named(f"slurmstepd: [{job}.")]
