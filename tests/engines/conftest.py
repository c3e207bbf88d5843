"""The library and weights of the shipped study, and builds with fake libraries."""

from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import pytest
from nearfree.backends.builds import Abi, Build, build_of
from nearfree.config.files import Config
from nearfree.core.modules.engine import EngineStudy
from nearfree.core.weights import AnyWeights
from nearfree.engines import library
from nearfree.engines.files import library_folder, weights_path
from nearfree.engines.library import Library, load
from nearfree.engines.llama_cpp import Context, Model
from nearfree.log.line import sha256
from nearfree.measure.engine_files import ensure_files, missing_files

STUDY = "llama_cpp_smollm2"
ENGINE, RELEASE = "llama_cpp", "3.22.1"
CONFIG = Path(__file__).parents[2] / "config"


class Real(NamedTuple):
    """What the shipped study runs."""

    study: EngineStudy
    folder: Path
    build: Build
    weights: AnyWeights
    path: Path


@pytest.fixture(scope="session")
def real(request: pytest.FixtureRequest) -> Real:
    """Return library and weights; slow runs fetch them, fast runs skip where they are missing."""
    config = Config(CONFIG)
    study = config.studies[STUDY]
    assert isinstance(study, EngineStudy)
    if lacking := missing_files(config, study):
        if request.config.getoption("-m") == "not slow":
            pytest.skip(f"{' and '.join(lacking)} is not here: `nearfree fetch` gets it")
        list(ensure_files(config, study))
    build, weights = build_of(study.backend, study.release), config.weights_of(study)
    folder = library_folder(study.backend, study.release, build)
    return Real(study, folder, build, weights, weights_path(weights, {}))


@pytest.fixture(scope="session")
def loaded(real: Real) -> Library:
    """Return the real library, loaded into this process."""
    return load(real.folder, real.build)


@pytest.fixture(scope="session")
def model(real: Real, loaded: Library) -> Iterator[Model]:
    """Return the real weights in memory."""
    with closing(Model(loaded, real.path, repack=True)) as held:
        yield held


Contexts = Callable[..., Context]


@pytest.fixture
def context(model: Model) -> Iterator[Contexts]:
    """Return a function that makes contexts, which are closed after the test."""
    made: list[Context] = []

    def make(**sizes: int) -> Context:
        made.append(Context(model, threads=1, **sizes))
        return made[-1]

    yield make
    for open_context in made:
        open_context.close()


def fake_build(files: dict[str, bytes], **changes: object) -> Build:
    """Return a prebuilt build that pins these libraries and has no functions."""
    fields = {
        "package": "@demo/engine",
        "sources": "demo",
        "libraries": {f"bins/{name}": sha256(raw) for name, raw in files.items()},
        "abi": Abi(headers={}, structs={}, functions={}),
    }
    return Build(**(fields | changes))  # type: ignore[arg-type]


@pytest.fixture
def unloaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Reset the process's record of loaded builds."""
    monkeypatch.setattr(library, "_loaded", {})


@pytest.fixture
def nothing_loads(monkeypatch: pytest.MonkeyPatch, unloaded: None) -> None:
    """Fail the test that opens a library."""

    def refuse(path: str, **_: object) -> None:
        raise AssertionError(f"{path} was opened")

    monkeypatch.setattr(library.ctypes, "CDLL", refuse)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of an empty cache of its own."""
    monkeypatch.setenv("NEARFREE_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"
