"""The command line as a function, over results that are made once."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from derive.tables.logs import copy_config, make_results
from nearfree.cli import main
from nearfree.log.names import Layout
from once import made_once

ROOT = Path(__file__).parents[2]
Answer = tuple[int, str, str]
Call = Callable[..., Answer]


@pytest.fixture(scope="session")
def base_results(published: Layout, tmp_path_factory: pytest.TempPathFactory) -> Layout:
    """Return a results root with a probe, a study, the paper's values, and tables."""
    folder = made_once(
        tmp_path_factory, "asked", lambda to: make_results(Layout(to), published, takes=1)
    )
    return Layout(folder)


@pytest.fixture
def project(base_results: Layout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Change to a project of its own: a copy of the config and of the results."""
    copy_config(tmp_path / "config")
    shutil.copytree(base_results.root, tmp_path / "results")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Change to this repository, whose log holds rules and constants, with no release cached."""
    monkeypatch.chdir(ROOT)
    monkeypatch.setenv("NEARFREE_CACHE", str(tmp_path / "no" / "cache"))


def answer(capsys: pytest.CaptureFixture[str], argv: tuple[str, ...]) -> Answer:
    """Run a command and return its exit code, output and errors."""
    with pytest.raises(SystemExit) as exit_:
        main(argv)
    out, err = capsys.readouterr()
    return int(exit_.value.code or 0), out, err


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Call:
    """Return a function that runs a command and returns its exit code, output and errors."""
    return lambda *argv: answer(capsys, argv)


@pytest.fixture(scope="session")
def answers() -> dict[tuple[str, ...], Answer]:
    """Return the answers of earlier commands, by their arguments."""
    return {}


@pytest.fixture
def ask(
    recorded: None, capsys: pytest.CaptureFixture[str], answers: dict[tuple[str, ...], Answer]
) -> Call:
    """Return `call` for commands that only read this repository: equal ones run once."""

    def run(*argv: str) -> Answer:
        if argv not in answers:
            answers[argv] = answer(capsys, argv)
        return answers[argv]

    return run
