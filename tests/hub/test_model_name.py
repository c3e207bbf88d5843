"""Names, paths and ids of models; bounds of time and size."""

import subprocess
import sys
import threading
from pathlib import Path

import nearfree
import pytest
from decoders.files import CONFIG, SMALL, write
from hypothesis import example, given
from hypothesis import strategies as st
from nearfree.decoders.keys import SIZE_LIMIT
from nearfree.decoders.model_file import read_model_file
from nearfree.decoders.snapshots import REPOSITORY, Snapshot, snapshot_of
from nearfree.errors import ConfigError
from nearfree.hub.files import bounded, within
from nearfree.hub.model_name import resolve_model

COMMIT = "9c925d64d72725edaf899c6cb9c377fd0709d9c5"


def without_library(program: str) -> subprocess.CompletedProcess[str]:
    """Run a program where huggingface_hub cannot be imported."""
    return subprocess.run(
        [sys.executable, "-c", f"import sys; sys.modules['huggingface_hub'] = None\n{program}"],
        env={"PYTHONPATH": str(Path(nearfree.__file__).parents[1])},
        cwd=CONFIG.parent,
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_name_comes_before_a_path_and_a_path_before_an_id(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A shipped name wins over a folder of that name; a folder wins over an id."""
    monkeypatch.chdir(tmp_path)
    for folder in ("qwen3_8b", "Qwen/Qwen3-8B"):
        Path(folder).mkdir(parents=True)
        write(Path(folder), SMALL["llama"], "config.json")
    assert resolve_model(CONFIG, "qwen3_8b") == "qwen3_8b"
    assert resolve_model(CONFIG, "Qwen/Qwen3-8B") == "Qwen/Qwen3-8B"


ODD = (
    *("Qwen/../x", "../Qwen", "Qwen/a/b", "Qwen/Qwen3-8B@../x", "Qwen/w@a//b", "Qwen/x.json"),
    *("Q\u202e/w", "a/b--c", "a/b.gguf", "/no/such", "a/b@", "a/b@\n", "x" * 5000, "a\0/b"),
)


@pytest.mark.parametrize("model", ODD)
def test_what_is_no_id_is_refused_before_the_hub_is_asked(model: str) -> None:
    """A path with `..`, a file's name and invalid characters are refused in one line."""
    with pytest.raises(ConfigError) as error:
        resolve_model(CONFIG, model)
    assert str(error.value).isprintable()
    assert "revision" in str(error.value).lower()


def test_without_the_library_an_id_says_what_to_install() -> None:
    """Names and paths need no huggingface_hub; an id without it names the extra."""
    program = "from nearfree.cli import main; main({!r})"
    where = ["--platform", "h200", "--attention", "flash-attn==2.8.3", "--largest", "2"]
    named = without_library(program.format(["predict", "--model", "qwen3_8b", *where]))
    assert (named.returncode, named.stderr) == (0, "")
    result = without_library(program.format(["predict", "--model", "Qwen/Qwen3-8B", *where]))
    assert result.returncode == 2
    assert result.stderr.count("\n") == 1
    assert 'pip install "nearfree[hub]"' in result.stderr


@pytest.mark.parametrize("commit", [COMMIT, COMMIT[:39], f"{COMMIT[:39]}g"])
def test_a_snapshot_is_known_by_its_folder(tmp_path: Path, commit: str) -> None:
    """A file of a snapshot is named by repository and commit; in any other folder by the folder."""
    blobs = tmp_path / "models--Qwen--Qwen3-8B" / "blobs"
    folder = blobs.parent / "snapshots" / commit
    for folder_ in (blobs, folder):
        folder_.mkdir(parents=True)
    write(blobs, SMALL["llama"], "0123")
    (folder / "config.json").symlink_to(blobs / "0123")
    file = read_model_file(folder)
    is_commit = commit == COMMIT
    assert file.name == ("Qwen/Qwen3-8B@9c925d6" if is_commit else commit)
    assert file.revision == (commit if is_commit else None)
    assert file.decoder is not None
    assert file.decoder.name == file.name


WORDS = st.from_regex(r"\A[A-Za-z0-9_]+(?:[._-][A-Za-z0-9_]+)*\Z")
"""Words of an id: no two consecutive dots or hyphens."""


@given(st.builds("{}/{}".format, WORDS, WORDS).filter(REPOSITORY.fullmatch))
@example("Qwen/Qwen3-8B")
def test_a_snapshot_folder_says_its_repository(repository: str) -> None:
    """The folder of any repository leads back to it."""
    folder = Path("/cache") / f"models--{repository.replace('/', '--')}" / "snapshots" / COMMIT
    assert snapshot_of(folder / "config.json") == Snapshot(repository, COMMIT)


PIECES = ("a", "a", "B9", "_", "a.b", "a-b", ".", "..", "--", "\u00e9")
SIDE = st.lists(st.sampled_from(PIECES), min_size=1, max_size=3).map("".join)
"""One side of a slash, of an id or not."""


@given(st.builds("{}/{}".format, SIDE, SIDE))
def test_no_id_leaves_its_folder(text: str) -> None:
    """Neither side of an accepted id is a path, and all characters are plain."""
    if REPOSITORY.fullmatch(text):
        org, name = text.split("/")
        assert not {"", ".", ".."} & {org, name}
        assert text.isascii()
        assert ".." not in text
        assert "--" not in text


@pytest.mark.parametrize(
    "text",
    ["Qwen/..", "../Qwen", "Qwen", "a/b/c", "a/b.git", "-a/b", "a/b--c", "a/.", "a/b\n", "/b"],
)
def test_relative_paths_are_no_ids(text: str) -> None:
    """A path, a name of one word, and what the hub does not allow are not taken for an id."""
    assert REPOSITORY.fullmatch(text) is None


def test_work_that_takes_too_long_is_left() -> None:
    """The wait ends however slow the transfer is; exceptions inside are passed on."""
    with pytest.raises(TimeoutError, match=r"no answer within 0\.05 seconds"):
        within(0.05, lambda: str(threading.Event().wait(1.0)))
    assert within(5.0, lambda: "done") == "done"
    with pytest.raises(ConfigError, match="odd"):
        within(5.0, _odd)


def _odd() -> str:
    raise ConfigError("odd", remedy="None")


def test_a_file_ends_at_the_largest_that_is_read() -> None:
    """The bound holds for the announced size and for the bytes received."""
    bar = bounded("config.json")
    with bar(total=SIZE_LIMIT, unit="B") as progress:
        progress.update(SIZE_LIMIT)
        with pytest.raises(ConfigError, match=f"{SIZE_LIMIT + 1} bytes"):
            progress.update(1)
    with pytest.raises(ConfigError, match="bytes or more"):
        bar(total=SIZE_LIMIT + 1)
