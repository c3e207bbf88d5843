"""A project whose environments take seconds to make: two small wheels, and one package to build."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
PARTS = ("workflow", "pyproject.toml", "README.md", "LICENSE")
SIX = (
    "six==1.17.0 \\\n"
    "    --hash=sha256:ff70335d468e7eb6ec65b95b99d3a2836546063f63acc5171de367e834932a81\n"
    "    # via nothing\n"
)
"""The source alone, which setuptools builds."""
THIS = ".".join(map(str, sys.version_info[:2]))
MEASURES = ("msgspec", "setuptools")


def entry(name: str) -> str:
    """Return what the workflow's own lock holds of a package."""
    match = re.search(
        rf"^{name}==.*\n(?:[ #].*\n)*", (ROOT / "envs/base.lock").read_text(), re.MULTILINE
    )
    assert match, name
    return match[0]


def make_tiny(folder: Path, *, python: str = THIS) -> Path:
    """Return the folder of a project with the environment `tiny`, for one version of Python."""
    ignored = shutil.ignore_patterns("__pycache__", "*.egg-info")
    for part in PARTS:
        source, target = ROOT / part, folder / part
        if source.is_dir():
            shutil.copytree(source, target, ignore=ignored)
        else:
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, target)
    (folder / "envs").mkdir()
    (folder / "envs/tiny.lock").write_text("".join(map(entry, MEASURES)) + SIX)
    (folder / "envs/tiny.in").write_text("six\n")
    (folder / "envs/uv.toml").write_text(
        f'[pip]\npython-version = "{python}"\nno-binary = ["six"]\n'
    )
    return folder


def start(folder: Path, *arguments: str, **variables: str) -> subprocess.Popen[str]:
    """Start a command of nearfree in a project's folder."""
    return subprocess.Popen(
        [sys.executable, "-m", "nearfree", *arguments],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(folder / "workflow")} | variables,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    """Wait for a command; return its exit code, output and errors."""
    out, err = process.communicate(timeout=300)
    return process.returncode, out, err


def call(folder: Path, *arguments: str, **variables: str) -> tuple[int, str, str]:
    """Run a command of nearfree in a project's folder."""
    return finish(start(folder, *arguments, **variables))
