"""Private text: what it is, and what is left of an error without it."""

import pwd
from pathlib import Path

import pytest
from nearfree.log.line import holds_home, home, private_patterns, without_private


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a home folder and change into a project below it."""
    (tmp_path / "project").mkdir()
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path / "project")
    return tmp_path


def private(text: str) -> list[str]:
    """Return the pieces of a text that must not be on record."""
    return [match for pattern in private_patterns() for match in pattern.findall(text)]


def test_the_home_folder_is_private(folder: Path) -> None:
    """The home folder and the mark of a URL must not be on record."""
    assert home() == str(folder)
    assert private(f"in {folder}/cache") == [str(folder)]
    assert private("see https://host") == ["://"]
    assert holds_home(f"cache: {folder}/cache")


def test_the_root_is_not_private(monkeypatch: pytest.MonkeyPatch) -> None:
    """A home folder `/`, which every path holds, hides nothing."""
    monkeypatch.setenv("HOME", "/")
    assert home() is None
    assert private("/of/any:/text://") == ["://"]
    assert not holds_home("/of/any")


@pytest.mark.parametrize(
    "text",
    [
        "/data",
        "/data/weights",
        "no space in /data.",
        '"path":"/data"',
        r'"error":"two lines:\n/data/weights"',
        "PATH=/bin:/data/bin",
        "/data..",
        '"nvcc -I/data/include"',
    ],
)
def test_a_home_folder_of_one_name_is_private(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """A short home folder is found wherever a path begins with it, behind a line's end too."""
    monkeypatch.setenv("HOME", "/data")
    assert private(text) == ["/data"]
    assert "~" in without_private(text)


@pytest.mark.parametrize(
    "text",
    ["flashinfer/data/include", "/mnt/data", "../data/x", "/data2/x", "/data-b", "/data.old/x"],
)
def test_a_piece_of_another_path_is_not_private(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    """A path that has the home folder's name in its midst, or begins with more, stays as it is."""
    monkeypatch.setenv("HOME", "/data")
    assert private(text) == []
    assert not holds_home(text)
    assert without_private(text) == text


def test_an_unknown_user_has_no_home_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the system does not know the user, there is no home folder to hide."""

    def unknown(_: int) -> None:
        raise KeyError

    monkeypatch.delenv("HOME")
    monkeypatch.setattr(pwd, "getpwuid", unknown)
    assert home() is None
    assert without_private("https://host/x") == "https:host/x"


def test_an_error_keeps_its_sense(folder: Path) -> None:
    """Project folders become relative, the home folder a tilde, and URLs lose their mark."""
    text = f"{folder}/project/envs, {folder}/cache and https://host/x are gone"
    assert without_private(text) == "./envs, ~/cache and https:host/x are gone"
    assert without_private("nothing of that") == "nothing of that"


def test_standing_at_the_root_leaves_paths_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process whose working folder is `/` does not spoil every path in its errors."""
    monkeypatch.chdir("/")
    assert without_private("results/events is gone") == "results/events is gone"
