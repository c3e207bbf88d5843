"""A project whose platforms are nodes of the cluster, and its workflow as a user there runs it."""

import os
import subprocess
import sys
from pathlib import Path

import yaml
from nearfree.log.evidence import Take, read_take
from nearfree.log.names import Layout, TakeName

from slurm.conf import GPUS
from workflow import Project, make_project

FAKES = tuple(f"fake_{gpu}" for gpu in GPUS)
"""Platforms that stand for a GPU each; what they measure is this machine's CPU."""
LOOKING = str(Path(__file__).with_name("looking.py"))
PROFILE = (
    *("--profile", "slurm", "--slurm-status-command", "squeue"),
    *("--slurm-init-seconds-before-status-checks", "3", "--latency-wait", "10"),
)


class Site(Project):
    """A project on a cluster without accounting."""

    output = ""
    """What the workflow said when it last ran to its end."""

    def copies(self, study: str, *names: str) -> None:
        """Replace the studies of studies.yaml with copies of one."""
        path = self / "config/studies.yaml"
        text = yaml.safe_load(path.read_text())[study]
        path.write_text(yaml.safe_dump(dict.fromkeys(names, text)))

    def start(self, *options: str) -> "subprocess.Popen[bytes]":
        """Start the workflow on the cluster and return at once."""
        with (self / "said.txt").open("wb") as file:  # a pipe that nobody reads would stop it
            return subprocess.Popen(
                [sys.executable, LOOKING, *PROFILE, *options],
                cwd=self.folder,
                env={**os.environ, "PYTHONPATH": str(self.folder / "workflow")},
                stdout=file,
                stderr=subprocess.STDOUT,
            )

    def end(self, run: "subprocess.Popen[bytes]", seconds: float = 300) -> str:
        """Wait for a workflow to end, with a timeout; return its output."""
        try:
            run.wait(seconds)
        finally:
            run.kill()
            run.wait()
        return (self / "said.txt").read_text()

    def submit(self, *options: str) -> str:
        """Run the workflow on the cluster and return its output; fail if it fails."""
        run = self.start(*options)
        self.said = self.end(run)
        assert run.returncode == 0, self.said + self.logs()
        return self.said

    def logs(self) -> str:
        """Return what every job wrote."""
        files = sorted(self.folder.glob("logs/**/*.log"))
        return "".join(f"\n== {file.name}\n{file.read_text()}" for file in files)

    @property
    def layout(self) -> Layout:
        """The results root."""
        return Layout(self.folder / "results")

    def takes(self, scope: str, stream: str) -> list[Take]:
        """Return the sealed takes of a stream, oldest first."""
        return [read_take(self.layout, name) for name in self.names(scope, stream)]

    def names(self, scope: str, stream: str, *, sealed: bool = True) -> list[TakeName]:
        """Return the names of a stream's takes."""
        takes = self.layout.takes(scope, sealed=sealed)
        return [name for name in takes if name.stream == stream]


def make_site(folder: Path) -> Site:
    """Return a fresh project for the cluster, with nothing run yet."""
    site = Site(make_project(folder, "slurm").folder)
    with (site / "config/platforms.yaml").open("a") as file:
        file.writelines(f"\n{name}: {{kind: cpu}}\n" for name in FAKES)
    return site
