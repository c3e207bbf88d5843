"""OpenVINO: refusals before loading, and runs in its own environment."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import nearfree
import numpy as np
import pytest
from conftest import read_sealed
from gguf_files.files import TensorEntry, gguf, scalar, string
from measure import engine_takes
from msgspec import structs
from nearfree.backends.adapters.kernel import ExecutionContext
from nearfree.backends.builds import build_of
from nearfree.backends.environments.lock import Environment
from nearfree.backends.environments.make import make
from nearfree.cli import main, tune_engine
from nearfree.core.protocols import Interleaved
from nearfree.core.weights import WeightsFile
from nearfree.derive.tune import plans
from nearfree.engines import kernel, openvino, openvino_kernel
from nearfree.engines.library import recorded_sha256
from nearfree.engines.openvino import PACKAGES, last_line, load, package_folders, refuse_unread
from nearfree.engines.openvino_kernel import OpenVinoForward
from nearfree.engines.openvino_pages import Pages
from nearfree.errors import ConfigError, EvidenceError, LockError
from nearfree.gguf.header import stored_bytes
from nearfree.gguf.reader import read_header, weights_sha256
from nearfree.log.events import EngineLoaded, LatencyMeasured, SharesMeasured, WorkCounted
from nearfree.log.names import Layout
from nearfree.log.seal import read_seal
from nearfree.log.verify import verify
from nearfree.measure.own_file import default_release, own_file

from engines.conftest import Real
from engines.test_kernel import make_engine_setting

ROOT = Path(__file__).parents[2]
RELEASE = "2026.4.1.0"
BUILD = build_of("openvino", RELEASE)
Q4_1, Q8_0, Q5_K, BF16 = 3, 8, 13, 30


def written(folder: Path, kind: int, size: int, architecture: str = "llama") -> Path:
    """Write a file of one matrix of a type."""
    metadata = [
        ("general.architecture", string(architecture)),
        ("llama.block_count", scalar("uint32", 1)),
    ]
    path = folder / "small.gguf"
    path.write_bytes(gguf(metadata, [TensorEntry("blk.0.ffn_up.weight", (256, 2), kind, size)]))
    return path


@pytest.mark.parametrize(
    ("kind", "size", "named"), [(BF16, 1024, "bf16"), (Q5_K, 2 * 176, "q5_k")], ids=["bf16", "q5_k"]
)
def test_a_format_that_it_does_not_read_is_named(
    tmp_path: Path, kind: int, size: int, named: str
) -> None:
    """A file with weights in another format is one message with the formats that are read."""
    header = read_header(written(tmp_path, kind, size))
    with pytest.raises(EvidenceError, match=f"no GGUF weights in {named}") as caught:
        refuse_unread(header)
    assert "q4_1" in caught.value.remedy


def test_an_architecture_that_it_does_not_build_is_named(tmp_path: Path) -> None:
    """A file of another architecture is refused by name, one that is known is not."""
    refuse_unread(read_header(written(tmp_path, Q8_0, 16 * 34)))
    header = read_header(written(tmp_path, Q8_0, 16 * 34, "gemma3"))
    with pytest.raises(EvidenceError, match="of the architecture 'gemma3'"):
        refuse_unread(header)


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Path]:
    """Return the library of each package, as installations of these names recorded it."""
    made = {}
    for package in PACKAGES:
        plain = package.replace("-", "_")
        library = tmp_path / "site" / plain / f"lib{plain}.so.2641"
        library.parent.mkdir(parents=True)
        library.write_bytes(package.encode())
        (library.parent / "__init__.py").write_text("raise SystemExit('it was imported')")
        info = tmp_path / "site" / f"{plain}-{RELEASE}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(
            f"Metadata-Version: 2.1\nName: {package}\nVersion: {RELEASE}\n"
        )
        rows = [
            f"{plain}/{path.name},sha256={recorded_sha256(path).decode()},1"
            for path in sorted(library.parent.iterdir())
        ]
        (info / "RECORD").write_text("\n".join(rows))
        made[package] = library
    monkeypatch.syspath_prepend(tmp_path / "site")
    return made


def test_packages_are_those_of_their_records(installed: dict[str, Path]) -> None:
    """Packages as pip recorded them are accepted, and none is imported."""
    assert package_folders(RELEASE, BUILD) == tuple(
        sorted(path.parent for path in installed.values())
    )


@pytest.mark.parametrize(
    "damage",
    [
        lambda library: library.write_bytes(b"other"),
        lambda library: library.unlink(),
        lambda library: (library.parent / "libmore.so").touch(),
        lambda library: (library.parent / "__init__.py").write_text("print()"),
    ],
    ids=["changed", "missing", "more", "code"],
)
@pytest.mark.parametrize("package", PACKAGES)
def test_packages_that_were_changed_are_refused(
    installed: dict[str, Path], damage: Callable[[Path], object], package: str
) -> None:
    """A library or module changed, gone or added is one error, and nothing is imported."""
    damage(installed[package])
    with pytest.raises(LockError, match=f"is not what {package} installed") as caught:
        load(RELEASE, BUILD)
    assert "make it again" in caught.value.remedy
    assert openvino._loaded == {}


def test_another_release_than_the_lock_s_is_refused(installed: dict[str, Path]) -> None:
    """A package of another version than the build's is not loaded."""
    with pytest.raises(LockError, match=r"openvino-genai 2026\.4\.1\.0 is not 1\.0"):
        load("1.0", BUILD)


def test_an_interpreter_without_openvino_is_refused_with_its_environment() -> None:
    """The workflow's interpreter has no OpenVINO: the error names the environment that has it."""
    with pytest.raises(LockError, match="openvino is not installed") as caught:
        load(RELEASE, BUILD)
    assert "environment make openvino" in caught.value.remedy


@pytest.mark.parametrize("name", ["ONEDNN_MAX_CPU_ISA", "OV_CPU_DEBUG", "OPENVINO_LOG_LEVEL"])
def test_variables_that_change_what_runs_are_refused(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """A variable that the libraries read is named before anything is loaded."""
    monkeypatch.setenv(name, "1")
    with pytest.raises(EvidenceError, match=f"{name} is set"):
        load(RELEASE, BUILD)


def test_an_exception_of_the_binding_is_one_line() -> None:
    """The reason is the last line of an exception's text, shortened."""
    assert last_line(RuntimeError("Exception from a.cpp:1:\nDevice is not there\n\n")) == (
        "Device is not there"
    )
    assert last_line(RuntimeError("")) == "no reason"
    assert len(last_line(RuntimeError("x" * 999))) == 200


def test_a_file_of_one_s_own_is_planned_for_its_environment(tmp_path: Path) -> None:
    """Its plan names the pinned release and its environment, and warms each N up."""
    path = written(tmp_path, Q8_0, 16 * 34)
    options: dict[str, Any] = {
        "scope": "cpu", "release": None, "batch": (1,), "context": (8,), "threads": (1,),
        "repack": (True,), "positions": (1, 2), "protocol": Interleaved(rounds=3),
    }  # fmt: skip
    own = own_file("openvino", path, **options)
    assert (own.plan.environment, own.plan.protocol.warmup) == ("openvino", 1)
    assert {sweep.setting.release for sweep in own.plan.sweeps} == {RELEASE}
    llama = own_file("llama_cpp", path, **options)
    assert (llama.plan.environment, llama.plan.protocol.warmup) == ("cpu", 0)
    assert default_release("llama_cpp") == "3.22.1"
    with pytest.raises(ConfigError, match="'vllm' is no engine that is driven here"):
        default_release("vllm")


@pytest.fixture(scope="module")
def python() -> Path:
    """Return the interpreter of OpenVINO's environment, which is made once for a clone."""
    before = Path.cwd()
    os.chdir(ROOT)
    try:
        environment = Environment("openvino")
        make(environment, print)
        return environment.python.absolute()
    finally:
        os.chdir(before)


def run(interpreter: Path, *argv: str) -> "subprocess.CompletedProcess[str]":
    """Run a Python program by an interpreter, with the package and the tests beside it."""
    paths = os.pathsep.join((str(Path(nearfree.__file__).parents[1]), str(ROOT / "tests")))
    return subprocess.run(
        [str(interpreter), *argv], cwd=ROOT, env=os.environ | {"PYTHONPATH": paths},
        capture_output=True, text=True, check=False,
    )  # fmt: skip


@pytest.mark.slow
def test_its_forwards_are_those_of_the_model(python: Path, real: Real) -> None:
    """Positions at once give what they give one by one, over a cache that each forward finds alike.

    The cache holds bytes, and a product of several rows rounds otherwise: the same up to 2 % of the
    logits' norm, and the same token. Each of two requests has what it has alone. Computed and
    cached in float32, rows beside others are the same to the bit, however many they are.
    """
    done = run(python, "-m", "engines.openvino_run", str(real.path))
    assert done.returncode == 0, done.stderr
    results = json.loads(done.stdout)
    assert results["again"] == 0.0
    assert results["one_by_one"] < 0.02
    assert results["batch"] < 0.02
    assert results["stateful"] < 0.02
    assert results["same_tokens"] == results["rows"]
    assert results["batch_of_rows"] == {str(n): 0.0 for n in (2, 3, 5, 8)}
    assert results["alone"] < 0.02
    assert "no forward over N = 9" in results["refused"]


def test_a_cached_position_takes_its_part_of_the_engine_s_blocks() -> None:
    """Bytes of a position are those of the cache as the compiled model has it, scales included."""
    sizes = [SimpleNamespace(get_length=lambda size=size: size) for size in (2, 3, 32, 24)]
    model = SimpleNamespace(
        inputs=[
            SimpleNamespace(any_name=f"{kind}_cache.0", partial_shape=sizes, element_type="uint8")
            for kind in ("key", "value")
        ],
        create_infer_request=lambda: SimpleNamespace(set_tensor=lambda *_: None),
    )
    runtime = SimpleNamespace(
        openvino=SimpleNamespace(
            Shape=tuple,
            Tensor=lambda kind, shape: SimpleNamespace(data=np.zeros(shape, kind)),
        ),
        numpy=np,
    )
    compiled: Any = SimpleNamespace(runtime=runtime, model=model)
    pages = Pages(compiled, batch=2, cached=0, positions=40, vocabulary=100)
    assert pages.position_bytes == 2 * 3 * 24


def test_a_model_that_a_killed_process_left_is_removed(tmp_path: Path) -> None:
    """An unlocked folder is removed; a locked one, or one that is not ours, stays."""
    killed, living = openvino._held_folder(tmp_path), openvino._held_folder(tmp_path)
    (tmp_path / "openvino-of-before").mkdir()
    killed[1].close()
    made = openvino._held_folder(tmp_path)
    names = {Path(folder.name) for folder, _ in (living, made)}
    assert set(tmp_path.glob("openvino-*")) == names | {tmp_path / "openvino-of-before"}
    for folder, held in (killed, living, made):
        held.close()
        folder.cleanup()


def test_a_model_that_is_compiled_is_not_counted_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Settings of equal threads and cache share a model and add caches only; others add both."""
    path = written(tmp_path, Q8_0, 16 * 34)
    weights = WeightsFile(file_type="q8_0", sha256=weights_sha256(path))
    execution = ExecutionContext(weights={"small": weights}, files={weights.sha256: path})
    setting = make_engine_setting(
        weights, backend="openvino", release=RELEASE, model="small", batch=1, context=1
    )
    half = stored_bytes(read_header(path)) // 2
    monkeypatch.setattr(kernel, "free_host_bytes", lambda: half)
    monkeypatch.setattr(openvino_kernel, "load", lambda *_: None)
    monkeypatch.setattr(openvino_kernel, "vocabulary", lambda _: 9)
    monkeypatch.setattr(openvino_kernel, "Pages", lambda *_, **__: None)
    execution.shared["openvino", str(path), 1, None] = SimpleNamespace()  # type: ignore[assignment]
    execution.shared["openvino", str(path)] = SimpleNamespace()  # type: ignore[assignment]
    OpenVinoForward(setting, (1,), execution)
    for other in ({"threads": 2}, {"kv_dtype": "float32"}):
        with pytest.raises(EvidenceError, match="GB are free"):
            OpenVinoForward(structs.replace(setting, **other), (1,), execution)


@pytest.mark.slow
def test_it_is_measured_in_its_environment(python: Path, real: Real, tmp_path: Path) -> None:
    """`nearfree measure --engine openvino` seals a take that says what ran, in which numbers."""
    layout = engine_takes.known(Layout(tmp_path / "results"))
    argv = ["-m", "nearfree", "measure", "cpu", "--engine", "openvino", "--model", str(real.path)]
    argv += ["--results", str(layout.root), "--context", "40", "--positions", "1,2,4"]
    done = run(Path(sys.executable), *argv, "--rounds", "3")
    assert done.returncode == 0, done.stderr
    assert "INFERENCE_PRECISION_HINT: " in done.stdout
    (take,) = [payload for payload in layout.takes("cpu") if payload.stream != "hardware"]
    data = [event.data for event in read_sealed(layout, read_seal(layout, take))]
    (loaded,) = [payload for payload in data if isinstance(payload, EngineLoaded)]
    assert (loaded.engine, loaded.release, loaded.package) == ("openvino", RELEASE, BUILD.package)
    assert loaded.weights_sha256 == real.weights.sha256  # type: ignore[union-attr]
    assert {"libopenvino.so.2641", "libopenvino_intel_cpu_plugin.so"} < loaded.library_sha256.keys()
    for name in ("INFERENCE_PRECISION_HINT", "KEY_CACHE_PRECISION", "VALUE_CACHE_PRECISION"):
        assert f"{name}: " in loaded.system_info
    assert "INFERENCE_NUM_THREADS: 1 " in loaded.system_info
    visits = [payload for payload in data if isinstance(payload, LatencyMeasured)]
    assert sorted({payload.n for payload in visits}) == [1, 2, 4]
    assert all(min(payload.process_us) > 1000 for payload in visits)
    assert {payload.kernels for payload in data if isinstance(payload, WorkCounted)} == {
        ("mul_mat q4_1", "mul_mat q8_0")
    }
    assert not [payload for payload in data if isinstance(payload, SharesMeasured)]
    assert verify(layout.root).findings == ()


@pytest.mark.slow
def test_a_file_that_it_cannot_build_is_one_message(
    python: Path, real: Real, tmp_path: Path
) -> None:
    """A file whose header is whole and whose model is not: one line, exit code 2, no traceback."""
    del python, real
    layout = engine_takes.known(Layout(tmp_path / "results"))
    path = written(tmp_path, Q8_0, 16 * 34)
    argv = ["-m", "nearfree", "measure", "cpu", "--engine", "openvino", "--model", str(path)]
    done = run(Path(sys.executable), *argv, "--results", str(layout.root))
    assert (done.returncode, done.stdout) == (2, "")
    assert "OpenVINO does not load small.gguf" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_it_is_tuned_in_its_environment(
    python: Path,
    real: Real,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """T(N), trace, choice and proof of a short tuning, which it drafts for by itself.

    It pads drafts: each step that verifies has 1 + K rows. Computed and cached in float32, it takes
    the steps that are replayed with every K, whether or not outputs are those of none. T(N) of its
    own choice of precision is measured at one row, where nothing is drafted.
    """
    del python
    for module in (plans, tune_engine):
        monkeypatch.setattr(module, "GRID", (1, 2, 3, 4, 5, 9))
        monkeypatch.setattr(module, "LIMIT", 8)
    monkeypatch.setattr(tune_engine, "ROUNDS", 3)
    monkeypatch.chdir(ROOT)
    layout = engine_takes.known(Layout(tmp_path / "results"))
    texts = ("Repeat: blue gate 7 green door 9 blue gate 7 green", "Say: one two one two one")
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text("".join(f"{json.dumps({'prompt': text})}\n" for text in texts))
    words = ["tune", "openvino", "--model", str(real.path), "--prompts", str(prompts)]
    words += ["--threads", "1", "--repeats", "2", "--format", "json"]
    with pytest.raises(SystemExit) as end:
        main([*words, "--results", str(layout.root)])
    output = capfd.readouterr()
    assert not end.value.code, output.err
    document = json.loads(output.out)
    assert document["engine"]["name"] == "openvino"
    assert {row["n"] for row in document["curve"]} == {1, 2, 3, 4, 5, 9}
    assert document["curve_of"]["kv_dtype"] == "float32"
    drafted = [row for row in document["settings"] if row["k"]]
    assert drafted
    assert all(row["steps_equal"] and row["kv_dtype"] == "float32" for row in drafted)
    visits = [
        event.data
        for take in layout.takes("cpu")
        for event in read_sealed(layout, read_seal(layout, take))
        if isinstance(event.data, LatencyMeasured)
    ]
    by_cache = {
        cache: {visit.n for visit in visits if visit.setting.kv_dtype == cache}
        for cache in (None, "float32")
    }
    assert by_cache == {None: {1}, "float32": {1, 2, 3, 4, 5, 9}}
    assert all(row["tokens_s"]["value"] > 0 for row in document["settings"])
    assert verify(layout.root).findings == ()
