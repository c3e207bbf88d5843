"""`nearfree fetch` fetches the files of engines once, or refuses with the reason."""

import os
import subprocess
import sys
from pathlib import Path

import nearfree
import pytest
import yaml
from msgspec import json, structs
from nearfree.backends.builds import LOCK, build_of, locked
from nearfree.config.files import Config
from nearfree.core.modules.engine import EngineStudy
from nearfree.engines.files import cached_weights, prebuilt_folder
from nearfree.errors import LockError
from nearfree.log.document import locked_file
from nearfree.log.line import sha256
from nearfree.measure import engine_files
from nearfree.sources import engine_builds

from cli.conftest import ROOT, Call
from cli.test_mistakes import one_message

STUDY = "llama_cpp_smollm2"
ENVIRONMENT = os.environ | {"PYTHONPATH": str(Path(nearfree.__file__).parents[1])}


@pytest.fixture
def empty(project: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Change to a project whose cache is empty; return the cache."""
    monkeypatch.setenv("NEARFREE_CACHE", str(project / "cache"))
    return project / "cache"


@pytest.fixture
def small(empty: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, bytes]:
    """Let the study's libraries and weights be small files of a registry's; return the former."""
    files = {"bins/libllama.so": b"llama", "bins/libggml.so": b"ggml"}
    build = build_of("llama_cpp", "3.22.1")
    pinned = {path: sha256(raw) for path, raw in files.items()}
    fake = structs.replace(build, libraries=pinned)
    monkeypatch.setattr(engine_files, "build_of", lambda *_: fake)
    monkeypatch.setattr(engine_builds, "prebuilt_files", lambda *_, **__: files)
    study = Config(Path("config")).studies[STUDY]
    assert isinstance(study, EngineStudy)
    path = cached_weights(Config(Path("config")).weights_of(study).sha256)  # type: ignore[union-attr]
    path.parent.mkdir(parents=True)
    path.write_bytes(b"weights")
    return files


@pytest.mark.parametrize("name", ["mars", "dense_ffn", "../x"])
def test_an_unknown_study_is_one_message(name: str, empty: Path, call: Call) -> None:
    """A name that is no study of an engine is refused with their list; nothing is fetched."""
    answer = call("fetch", name)
    one_message(answer, f"{name!r} is not a study of an engine")
    assert STUDY in answer[2]
    assert not empty.exists()


def test_all_names_are_checked_first(empty: Path, call: Call) -> None:
    """A wrong name among right ones ends the command before anything is fetched."""
    one_message(call("fetch", STUDY, "mars", "--offline"), "'mars'")
    assert not empty.exists()


def test_offline_without_a_cache_is_one_message(empty: Path, call: Call) -> None:
    """Without a network and a cache, what is missing is named, and nothing is left behind."""
    one_message(call("fetch", "--offline"), "linux-x64 3.22.1 is not in the cache")
    assert not (empty / "engines").exists()


def test_the_release_that_stores_random_weights_is_fetched_first(empty: Path, call: Call) -> None:
    """A compiled release with random weights also needs the prebuilt one, which stores them."""
    answer = call("fetch", "llama_cpp_1b_q8_0", "--offline")
    one_message(answer, "linux-x64 3.22.1 is not in the cache")
    assert not (empty / "weights").exists()


def test_no_network_is_one_message(
    empty: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A registry that cannot be reached is one message."""
    monkeypatch.setenv("npm_config_registry", "http://127.0.0.1:9")
    one_message(call("fetch"), "linux-x64 is not available: the connection failed")
    assert not (empty / "engines").exists()


def test_fetching_puts_the_library_once(
    small: dict[str, bytes], call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each line names a file and its path; a second call fetches nothing."""
    code, out, err = call("fetch", STUDY)
    folder = prebuilt_folder("llama_cpp", "3.22.1")
    assert (code, err) == (0, "")
    assert [line.partition(":")[0] for line in out.splitlines()] == [
        "llama_cpp 3.22.1",
        "smollm2_135m",
    ]
    assert str(folder) in out
    assert {p.name: p.read_bytes() for p in folder.iterdir()} == {
        Path(path).name: raw for path, raw in small.items()
    }
    monkeypatch.setattr(engine_builds, "prebuilt_files", None)
    assert call("fetch", STUDY) == (0, out, "")


def test_a_file_that_studies_share_has_one_line(small: dict[str, bytes], call: Call) -> None:
    """Two studies of the same file have one line of it, and one of the library that runs both."""
    path = Path("config/studies.yaml")
    studies = yaml.safe_load(path.read_text())
    path.write_text(yaml.safe_dump(studies | {"again": studies[STUDY]}))
    code, out, err = call("fetch", STUDY, "again")
    assert (code, err) == (0, "")
    assert out == call("fetch", STUDY)[1]


def test_only_files_of_the_sites_studies_are_fetched(small: dict[str, bytes], call: Call) -> None:
    """Without a name, only what this site measures is fetched; a name fetches its study."""
    path = Path("config/config.yaml")
    path.write_text(yaml.safe_dump(yaml.safe_load(path.read_text()) | {"without": [STUDY]}))
    assert call("fetch") == (0, "", "")
    assert not prebuilt_folder("llama_cpp", "3.22.1").exists()
    assert call("fetch", STUDY)[0] == 0
    assert prebuilt_folder("llama_cpp", "3.22.1").exists()


def test_a_changed_library_is_fetched_again(small: dict[str, bytes], call: Call) -> None:
    """A folder that is not the lock's is replaced by what is."""
    folder = prebuilt_folder("llama_cpp", "3.22.1")
    folder.mkdir(parents=True)
    (folder / "libllama.so").write_bytes(b"other")
    assert call("fetch", STUDY)[0] == 0
    assert (folder / "libllama.so").read_bytes() == b"llama"


def test_a_library_of_another_hash_is_not_stored(
    small: dict[str, bytes], call: Call, empty: Path
) -> None:
    """A file that the lock does not pin is refused and not stored."""
    small["bins/libllama.so"] = b"other"
    one_message(call("fetch", STUDY), "libllama.so")
    assert list((empty / "engines").iterdir()) == []


def test_weights_of_other_bytes_are_refused(
    small: dict[str, bytes], empty: Path, monkeypatch: pytest.MonkeyPatch, call: Call
) -> None:
    """A package whose file has another hash than weights.yaml says is refused."""
    for path in (empty / "blobs").glob("*/*"):
        path.unlink()

    class OtherFile:
        class record:  # noqa: N801
            class _Member:
                sha256 = "f" * 64

            members = (_Member,)

    monkeypatch.setattr("nearfree.sources.fetching.fetch.fetch", lambda *_, **__: OtherFile)
    answer = call("fetch", STUDY)
    assert (answer[0], answer[2].count("\n")) == (2, 1)
    assert "has another SHA-256 than config/weights.yaml says" in answer[2]


UNFINISHED = ("report", "audit --all")
"""They end with exit code 2: the small project has no figures."""
WATCHED = """
import contextlib, ctypes, sys
from pathlib import Path
from nearfree.cli import main

opened = ctypes.CDLL.__init__

def refuse(self, name, *args, **kwargs):
    assert "llama" not in str(name) and "ggml" not in str(name), name
    opened(self, name, *args, **kwargs)

ctypes.CDLL.__init__ = refuse
code = 0
try:
    main(sys.argv[1:])
except SystemExit as end:
    code = end.code or 0
maps = Path("/proc/self/maps").read_text()
mapped = [name for name in ("libllama", "libggml") if name in maps]
names = ("library", "llama_cpp", "kernel")
print("\\nfound", code, *mapped, *(n for n in names if f"nearfree.engines.{n}" in sys.modules))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "line",
    [
        "predict --platform h800 --model qwen3_8b",
        "granularity llama_cpp==3.22.1 --type q4_k --rows 4",
        "report",
        "ledger",
        "audit --all",
        "verify",
        "tables project cpu",
        f"plan cpu {STUDY}",
    ],
)
def test_only_measuring_loads_an_engine(line: str, project: Path) -> None:
    """A command that measures nothing neither imports what loads a library nor maps one."""
    process = subprocess.run(
        [sys.executable, "-c", WATCHED, *line.split()],
        cwd=ROOT if line.startswith(("predict", "granularity")) else project,
        capture_output=True, text=True, check=True, env=ENVIRONMENT,
    )  # fmt: skip
    marker, code, *loaded = process.stdout.splitlines()[-1].split()
    assert (marker, loaded) == ("found", [])
    assert code == ("2" if line in UNFINISHED else "0"), process.stdout + process.stderr


def test_a_plan_of_an_engine_needs_no_files(empty: Path, call: Call) -> None:
    """The plan of an engine's study is printed without its library and weights."""
    code, out, _ = call("plan", "cpu", STUDY)
    assert code == 0
    assert set(json.decode(out)["weights"]) == {"smollm2_135m"}


def test_one_process_at_a_time_renews_the_lock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Call
) -> None:
    """While another process writes the lock, nothing is read, as it would be lost."""
    monkeypatch.chdir(tmp_path)
    with locked_file(LOCK):
        code, out, err = call("fetch", "--lock")
    assert (code, out) == (2, "")
    assert f"{LOCK} is being written by another process" in err
    LOCK.write_bytes(b'{"\xff":{}}')
    with pytest.raises(LockError, match=r"engines\.lock cannot be read"):
        locked()
