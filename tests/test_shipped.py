"""Where config and results come from, where no option names them."""

from pathlib import Path

import pytest
from nearfree.cli import make_parser
from nearfree.shipped import CLONE, FOLDERS, folder, shipped


def test_an_empty_folder_has_what_is_shipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a project both folders are the package's own, which are there."""
    monkeypatch.chdir(tmp_path)
    assert [folder(name) for name in FOLDERS] == [CLONE / name for name in FOLDERS]
    assert all(shipped(name).is_dir() for name in FOLDERS)


@pytest.mark.parametrize("there", FOLDERS)
def test_nothing_shipped_is_mixed_into_a_project(
    there: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of its two folders makes a project, which then stands for both."""
    monkeypatch.chdir(tmp_path)
    Path(there).mkdir()
    assert [folder(name) for name in FOLDERS] == [Path(name) for name in FOLDERS]


def test_only_answers_read_what_is_shipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A command that writes the log never takes a shipped folder for its own."""
    monkeypatch.chdir(tmp_path)
    parse = make_parser().parse_args
    assert parse(["lookup"]).results == CLONE / "results"
    Path("own").mkdir()
    assert parse(["lookup", "--results", "own"]).results == Path("own")
    assert parse(["ledger"]).results == Path("results")
