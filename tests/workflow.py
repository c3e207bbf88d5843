"""A project's folder of its own to run the real workflow in."""

import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from compileall import compile_dir
from hashlib import sha256
from pathlib import Path

import preloaded

ROOT = Path(__file__).parent.parent
NO_NETWORK = {"PIP_INDEX_URL": "http://127.0.0.1:9/simple", "NEARFREE_CACHE": "no/cache"}
PARTS = ("Snakefile", "rules", "workflow", "config", "profiles", "slurm", "envs")


class Project:
    """A copy of the project with a small config, and what its workflow would do or did."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __truediv__(self, name: str) -> Path:
        return self.folder / name

    def copy(self, folder: Path) -> "Project":
        """Return a copy with all files' times kept, as if it were the same folder."""
        shutil.copytree(self.folder, folder, symlinks=True)
        return Project(folder)

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Run a Python module in the folder, with the folder's own package."""
        env = {**os.environ, "PYTHONPATH": str(self.folder / "workflow")}
        if command[0] == preloaded.MODULE:
            return preloaded.run(command[1:], self.folder, env)
        return subprocess.run(
            [sys.executable, "-m", *command],
            cwd=self.folder,
            env=env,
            capture_output=True,
            text=True,
            check=False,
        )

    def snakemake(self, *options: str) -> str:
        """Run the workflow and return all that it said; fail if it failed."""
        done = self.run("snakemake", "--cores", "2", *options)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    def nearfree(self, *words: str) -> str:
        """Run a command and return its output; fail if it failed."""
        done = self.run("nearfree", *words)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def jobs(self, *options: str) -> dict[str, int]:
        """Return how many jobs of each rule a dry run lists, without the target itself."""
        text = self.snakemake("-n", *options)
        rules = re.findall(r"^(?:local)?(?:rule|checkpoint) ([\w/]+):$", text, re.MULTILINE)
        assert rules or "Nothing to be done" in text, text
        return dict(Counter(rule for rule in rules if rule != "all"))

    def files(self, *options: str) -> dict[tuple[str, str], tuple[set[str], set[str]]]:
        """Return what each job of a dry run reads and writes, by its rule and its log."""
        text = self.snakemake("-n", *options)
        jobs = re.findall(r"^(?:local)?rule (\w+):\n((?:    .+\n)+)", text, re.MULTILINE)
        fields = {(rule, body): dict(re.findall(r"^    (\w+): (.+)$", body, re.MULTILINE))
                  for rule, body in jobs}  # fmt: skip
        return {
            (rule, job_fields.get("log", "")): (
                set(job_fields.get("input", "").split(", ")),
                set(job_fields.get("output", "").split(", ")),
            )
            for (rule, _), job_fields in fields.items()
        }

    def events(self) -> dict[str, str]:
        """Return the digest of every file of the event log."""
        return self.digests("results/events")

    def digests(self, below: str) -> dict[str, str]:
        """Return the digest of every file below a folder."""
        base = self.folder / below
        files = (path for path in sorted(base.rglob("*")) if path.is_file())
        return {str(p.relative_to(base)): sha256(p.read_bytes()).hexdigest() for p in files}

    def edit(self, name: str, old: str, new: str) -> None:
        """Replace a text that stands in a file."""
        path = self.folder / name
        text = path.read_text()
        assert old in text, f"{name} lacks {old!r}"
        path.write_text(text.replace(old, new))


def make_project(folder: Path, *more: str) -> Project:
    """Return a fresh copy of this project, compiled, with the tiny config and nothing run yet.

    Over the tiny config come those of tests/configs that are named.
    """
    compile_dir(ROOT / "workflow", quiet=2)
    folder.mkdir(parents=True)
    for part in PARTS:
        source = ROOT / part
        ignored = shutil.ignore_patterns("*.egg-info", "takes.yaml")
        if source.is_dir():
            shutil.copytree(source, folder / part, ignore=ignored)
        else:
            shutil.copy(source, folder / part)
    for name in ("tiny", *more):
        shutil.copytree(ROOT / "tests" / "configs" / name, folder / "config", dirs_exist_ok=True)
    return Project(folder)
