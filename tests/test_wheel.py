"""The wheel: built twice the same, and answering in an empty folder without a clone or network."""

import hashlib
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
MODEL = ROOT / "config/models/qwen3_8b.json"
ON = ("--model", "FILE", "--platform", "h200")
TILES = ("--heads", "32", "--kv-heads", "8", "--head-dim", "128", "--device", "NVIDIA H20")
ANSWERS = {
    "predict": ("predict", *ON, "--format", "json"),
    "schedule": ("schedule", "vllm", *ON, "--largest-batch", "4"),
    "lookup": ("lookup", "--published"),
    "surface": ("surface", *ON, "--largest", "32"),
    "attention": ("granularity", "flash-attn==2.8.3", *TILES),
    "engine": ("granularity", "vllm==0.20.2", "--experts", "256", "--top-k", "8", "--d-ff", "1024",
               "--d-model", "4096", "--device", "NVIDIA H20"),
}  # fmt: skip
MOST_MB = 6
pytestmark = pytest.mark.slow


def bare(home: Path) -> dict[str, str]:
    """Return an environment that names no clone, no cache and a proxy where nothing listens."""
    proxies = dict.fromkeys(("http_proxy", "https_proxy", "all_proxy"), "http://127.0.0.1:9")
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "NEARFREE_CACHE")}
    return environment | proxies | {"HOME": str(home), "NEARFREE_CACHE": str(home / "cache")}


def build(into: Path) -> Path:
    """Return a wheel built as `make wheel` builds it."""
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel", "--no-deps")
    options = ("--no-build-isolation", "--wheel-dir", str(into))
    environment = os.environ | {"SOURCE_DATE_EPOCH": "1700000000"}
    subprocess.run([*pip, *options, "."], cwd=ROOT, env=environment, check=True)
    (wheel,) = into.glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a wheel of this clone."""
    return build(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def command(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the command of a new environment with the wheel and its base dependencies alone."""
    folder = tmp_path_factory.mktemp("installed") / "venv"
    subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
    python = str(folder / "bin/python")
    outside = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    install = [python, "-m", "pip", "--quiet", "install", str(wheel)]
    subprocess.run(install, env=outside, check=True)
    return folder / "bin/nearfree"


def told(
    command: list[str], folder: Path, environment: dict[str, str]
) -> subprocess.CompletedProcess[str]:
    """Return what a command says in a folder."""
    return subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


def test_a_wheel_is_small_and_twice_the_same(wheel: Path, tmp_path: Path) -> None:
    """Two builds of a commit are the same bytes, below 6 MB."""
    again = build(tmp_path)
    assert (
        hashlib.sha256(again.read_bytes()).digest() == hashlib.sha256(wheel.read_bytes()).digest()
    )
    assert wheel.stat().st_size < MOST_MB * 1_000_000


def test_a_wheel_ships_tracked_files_alone(wheel: Path) -> None:
    """Each shipped file is a tracked one of the clone, byte for byte."""
    listed = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    tracked = set(listed.stdout.splitlines())
    with zipfile.ZipFile(wheel) as held:
        data = [name for name in held.namelist() if name.startswith("nearfree/data/")]
        assert data
        for name in data:
            path = name.removeprefix("nearfree/data/")
            assert path in tracked
            assert held.read(name) == (ROOT / path).read_bytes(), path


@pytest.mark.parametrize("name", ANSWERS)
def test_an_installed_wheel_answers_as_the_clone_does(
    name: str, command: Path, tmp_path: Path
) -> None:
    """In an empty folder, without a network, it says what the clone says, and writes nothing."""
    file = shutil.copy(MODEL, tmp_path / "config.json")
    arguments = [str(file) if word == "FILE" else word for word in ANSWERS[name]]
    empty = tmp_path / "empty"
    empty.mkdir()
    environment = bare(tmp_path / "home")
    here = told([str(command), *arguments], empty, environment)
    assert here.returncode == 0, here.stderr
    assert not list(empty.iterdir())
    source = environment | {"PYTHONPATH": str(ROOT / "workflow")}
    there = told([sys.executable, "-m", "nearfree", *arguments], ROOT, source)
    assert here.stdout == there.stdout


def test_a_command_that_needs_more_says_which_extra(command: Path, tmp_path: Path) -> None:
    """One message names the extra that brings what is not installed; exit code 2."""
    done = told([str(command), "report"], tmp_path, bare(tmp_path / "home"))
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert "pip install 'nearfree[plot]'" in done.stderr


def test_a_wrong_config_is_named_not_replaced(command: Path, tmp_path: Path) -> None:
    """What comes with the wheel stands for nothing that was asked for by name."""
    arguments = ["predict", "--model", "qwen3_8b", "--platform", "h200", "--config", "no_such"]
    done = told([str(command), *arguments], tmp_path, bare(tmp_path / "home"))
    assert done.returncode == 2
    assert "no_such/config.yaml cannot be read" in done.stderr
