"""Layers: imports go one way, and each path imports no more than it needs."""

import ast
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import nearfree
import pytest

PACKAGE = Path(nearfree.__file__).parent
LAYERS = (
    "stopping", "errors", "units", "shipped", "core", "gguf", "derive.stages", "backends",
    "decoders", "hub",
    "log",
    "hardware", "config", "sources", "models", "engines", "measure", "preregister", "public",
    "derive.memory", "derive.tables", "derive.tune",
    "derive.schedule", "derive.granularity", "derive.laws", "derive.truth", "derive.work_model",
    "derive.reference", "derive.engine_step",
    "derive.predict", "derive.score", "derive.outlook", "derive.claims", "derive.jobs", "pipeline",
    "show.figures", "show.text", "show.page", "prove.audit", "prove.crate", "cli", "api",
    "__main__",
)  # fmt: skip
"""Each may import from itself and from those before it."""
DIVIDED = ("derive", "show", "prove")
"""Rooms whose parts are layers of their own."""
FILES = sorted(PACKAGE.rglob("*.py"))
HEAVY = {"altair", "huggingface_hub", "jinja2", "pandera", "polars", "snakemake", "torch", "yaml"}


@cache
def imports(path: Path) -> frozenset[str]:
    """Return the full names of what a file imports, now or lazily."""
    names = set()
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path} imports relatively, which digests do not follow"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return frozenset(names)


def layer(parts: tuple[str, ...]) -> str:
    """Return the layer of a module, given the parts of its name after the package's."""
    return ".".join(parts[:2] if parts[0] in DIVIDED else parts[:1])


def ours(path: Path) -> set[str]:
    """Return the layers that a file imports from."""
    names = (name.split(".") for name in imports(path))
    inside = [parts[1:] for parts in names if parts[0] == "nearfree"]
    return {layer(tuple(parts)) for parts in inside if parts != ["__version__"]}


def others(path: Path) -> set[str]:
    """Return the third-party packages that a file imports."""
    names = {name.split(".")[0] for name in imports(path)}
    return names - set(sys.stdlib_module_names) - {"nearfree"}


def allowed(path: Path) -> set[str]:
    """Return the layers that a file may import from: its own, and those before it."""
    relative = path.relative_to(PACKAGE).with_suffix("")
    if relative == Path("__init__"):
        return {"api"}  # lazily: the names of the Python API
    if relative.name == "__init__" and len(relative.parts) < 3 and relative.parts[0] != "cli":
        return set()
    return set(LAYERS[: LAYERS.index(layer(relative.parts)) + 1])


def test_imports_go_one_way() -> None:
    """A file imports only from its own layer and from those before it; the package, its API."""
    wrong = {str(path.relative_to(PACKAGE)): ours(path) - allowed(path) for path in FILES}
    assert {name: layers for name, layers in wrong.items() if layers} == {}
    assert ours(PACKAGE / "__init__.py") == {"api"}


ROOMS = ("fetching", "language", "cpp", "backends", "answers", "binaries")


@pytest.mark.parametrize("room", ROOMS)
def test_rooms_of_the_sources_import_one_way(room: str) -> None:
    """Files know nothing of languages, languages nothing of backends, backends of no answers."""
    later = ROOMS[ROOMS.index(room) + 1 :]
    unaware = {"fetching": ("language", "cpp"), "language": ("fetching",), "cpp": ("fetching",)}
    forbidden = {f"nearfree.sources.{room_name}" for room_name in (*later, *unaware.get(room, ()))}
    for path in (PACKAGE / "sources" / room).glob("*.py"):
        used = {".".join(name.split(".")[:3]) for name in imports(path)}
        assert not used & forbidden, path


DECODER_ROOMS = ("layouts", "ranks", "stored", "gguf_files")


@pytest.mark.parametrize("room", DECODER_ROOMS)
def test_rooms_of_decoders_import_one_way(room: str) -> None:
    """Layouts know nothing of ranks, neither of how matrices are stored, none of GGUF files."""
    later = DECODER_ROOMS[DECODER_ROOMS.index(room) + 1 :]
    forbidden = {f"nearfree.decoders.{room_name}" for room_name in later}
    for path in (PACKAGE / "decoders" / room).glob("*.py"):
        assert not {".".join(name.split(".")[:3]) for name in imports(path)} & forbidden, path


def test_every_layer_has_files() -> None:
    """The list of layers names nothing that is gone."""
    layers = {layer(path.relative_to(PACKAGE).with_suffix("").parts) for path in FILES}
    assert layers - {f"{room}.__init__" for room in DIVIDED} == {*LAYERS, "__init__"}


def test_tables_read_the_log_and_measure_nothing() -> None:
    """What is derived comes from the log; nothing of it imports the measuring code."""
    for path in (PACKAGE / "derive").rglob("*.py"):
        assert "measure" not in ours(path), path


def test_questions_alone_reach_the_hub() -> None:
    """What the log and the workflow are made by never asks for a model by its id."""
    users = {path.relative_to(PACKAGE).parts[0] for path in FILES if "hub" in ours(path)}
    assert users == {"hub", "cli"}


def test_the_import_of_published_values_needs_settings_and_events_alone() -> None:
    """What the paper published comes in without the hardware, the config or a table."""
    path = PACKAGE / "public" / "published.py"
    assert ours(path) == {"errors", "core", "log"}
    assert others(path) == {"msgspec"}


def test_the_import_of_curves_measures_nothing() -> None:
    """Curves of others come in by facts, files and units, without the measuring code."""
    needed = {
        "errors",
        "units",
        "core",
        "derive.stages",
        "log",
        "hardware",
        "config",
        "sources",
        "public",
    }
    for path in (PACKAGE / "public").glob("*.py"):
        assert ours(path) <= needed, path


@pytest.mark.parametrize(
    ("package", "layers"),
    [
        ("torch", {"hardware", "backends", "models", "measure"}),
        ("yaml", {"config"}),
        ("polars", {"public", "derive", "show", "prove", "api.py"}),
        ("pandera", {"derive"}),
        ("altair", {"show"}),
        ("jinja2", {"show"}),
        ("snakemake", set()),
        ("gguf", {"models"}),
        ("huggingface_hub", {"hub"}),
        ("requests", {"sources"}),
        ("pypi_simple", {"sources"}),
        ("tree_sitter", {"sources"}),
    ],
)
def test_each_dependency_stays_in_its_layers(package: str, layers: set[str]) -> None:
    """A third-party package is imported only in the layers that are about it."""
    users = {p.relative_to(PACKAGE).parts[0] for p in FILES if package in others(p)}
    assert users == layers


def loaded(program: str, *forbidden: str) -> set[str]:
    """Run a program in which some packages cannot be imported; return the packages it loaded."""
    return {name.split(".")[0] for name in loaded_modules(program, *forbidden)}


def loaded_modules(program: str, *forbidden: str) -> set[str]:
    """Run a program in which some packages cannot be imported; return the modules it loaded."""
    hook = (
        "import sys\n"
        "class Hook:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        f"        if name.split('.')[0] in {set(forbidden)!r}:\n"
        "            raise ModuleNotFoundError(f'{name} is forbidden here', name=name)\n"
        "sys.meta_path.insert(0, Hook())\n"
    )
    report = "\nprint('\\nloaded', *sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", hook + program + report],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"PYTHONPATH": str(PACKAGE.parent)},
    )
    return set(done.stdout.rpartition("\nloaded ")[2].split())


def test_measuring_needs_msgspec_and_torch_alone() -> None:
    """The measuring code imports where nothing but msgspec and torch is installed."""
    forbidden = (HEAVY - {"torch"}) | {"numpy", "vl_convert", "cloudevents"}
    program = (
        "import nearfree.measure.run, nearfree.hardware.probe\n"
        "import nearfree.backends.adapters.torch_dense\n"
        "from nearfree.cli import measure\n"
    )
    assert {"torch", "msgspec"} <= loaded(program, *forbidden)


def test_measuring_an_engine_needs_msgspec_alone() -> None:
    """What measures an engine imports where nothing but msgspec is installed: no torch, no numpy.

    What times a GPU, and what reads C headers or fetches, is not imported with it.
    """
    forbidden = HEAVY | {"numpy", "vl_convert", "cloudevents", "requests", "gguf", "tree_sitter"}
    program = (
        "import nearfree.measure.run, nearfree.engines.kernel, nearfree.measure.engine_shares\n"
        "from nearfree.backends.adapters.kernel import find_adapter\n"
        "from nearfree.backends.records import load\n"
        "load(find_adapter('engine', 'llama_cpp', 'cpu').class_path)\n"
        "from nearfree.cli import measure\n"
    )
    modules = loaded(program, *forbidden)
    assert "msgspec" in modules
    assert not modules & {"torch", "numpy", "yaml"}


def test_help_imports_next_to_nothing() -> None:
    """`nearfree --help` imports none of the large packages."""
    program = (
        "from nearfree.cli import main\ntry:\n    main(['--help'])\nexcept SystemExit:\n    pass\n"
    )
    assert not loaded(program) & (HEAVY | {"msgspec"})


UNASKED = (
    *("nearfree.engines", "nearfree.measure", "nearfree.models", "nearfree.public"),
    *("nearfree.sources.binaries", "nearfree.sources.cpp", "nearfree.sources.fetching"),
    *("nearfree.sources.answers.ggml", "nearfree.sources.tuned"),
    *("nearfree.derive.granularity.engine", "nearfree.derive.laws.engine_law"),
    *("nearfree.derive.predict.engine_answers", "nearfree.derive.work_model.engine"),
    *("nearfree.derive.work_model.samples", "nearfree.derive.score", "nearfree.derive.tune"),
    *("pypi_simple", "requests", "tarfile", "tree_sitter", "http.client"),
    *(HEAVY - {"polars", "yaml"}),
)
"""What no answer about a GPU needs: engines, sources to fetch and read, curves to calibrate on."""


@pytest.mark.parametrize("platform", ["h200", "b200", "l40s"])
def test_a_gpu_is_answered_by_what_is_on_record(platform: str) -> None:
    """`predict` for a GPU loads nothing that fetches, reads sources, runs engines or calibrates."""
    project = PACKAGE.parents[1]
    roots = ["--config", str(project / "config"), "--results", str(project / "results")]
    command = [
        "predict",
        *roots,
        "--model",
        "qwen3_30b_a3b",
        "--platform",
        platform,
        "--ignore-memory",
    ]
    program = (
        "from nearfree.cli import main\n"
        f"try:\n    main({command!r})\n"
        "except SystemExit as end:\n    assert end.code == 0\n"
    )
    modules = loaded_modules(program)
    assert "nearfree.derive.predict.answers" in modules
    allowed_sources = {"nearfree.sources.fetching", "nearfree.sources.fetching.cache"}
    assert not {name for name in modules - allowed_sources if name.startswith(UNASKED)}


@pytest.mark.parametrize("command", [["log", "show"], ["log", "recover"], ["verify"]])
def test_a_command_of_the_log_needs_no_tables(command: list[str], tmp_path: Path) -> None:
    """A command that reads the log loads neither tables nor figures nor torch."""
    (tmp_path / "events").mkdir()
    program = (
        "from nearfree.cli import main\n"
        f"try:\n    main({[command[0], '--results', str(tmp_path), *command[1:]]!r})\n"
        "except SystemExit as end:\n    assert end.code == 0\n"
    )
    assert not loaded(program) & HEAVY


def test_foretelling_needs_what_measuring_brings() -> None:
    """What is foretold is put on record where modules were measured, without table libraries."""
    program = "import nearfree.preregister.record, nearfree.cli.study"
    loaded(program, *HEAVY)
