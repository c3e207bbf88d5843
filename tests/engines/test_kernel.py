"""An engine's forward as a kernel: refusals before loading, and what is recorded."""

import math
from pathlib import Path
from typing import Any

import pytest
from gguf_files.files import SMALL
from msgspec import structs
from nearfree.backends.adapters.kernel import ExecutionContext, make_kernel
from nearfree.core.setting import Setting
from nearfree.core.weights import AnyWeights, RandomWeights, WeightsFile
from nearfree.decoders.ranks.modules import ATTENTION, BETWEEN, DENSE, HEAD, OUTPUT, QKV
from nearfree.engines import kernel, threads
from nearfree.engines.files import weights_path
from nearfree.engines.kernel import LlamaCppForward, cached_bytes, forward_work
from nearfree.engines.library import Library
from nearfree.errors import ConfigError, EvidenceError, LockError, NearfreeError
from nearfree.gguf.header import stored_bytes
from nearfree.gguf.reader import read_header
from nearfree.log.line import sha256

from engines.conftest import Real

ROLES = {ATTENTION, BETWEEN, DENSE, HEAD, OUTPUT, QKV}


def make_engine_setting(weights: AnyWeights, **changes: Any) -> Setting:
    """Return the setting of a forward over some weights."""
    fields: dict[str, Any] = {
        "module": "engine", "backend": "llama_cpp", "dtype": "float32", "model": "small",
        "model_digest": weights.digest, "release": "3.22.1", "file_type": weights.file_type,
        "batch": 1, "context": 8, "threads": 1, "repack": True,
    }  # fmt: skip
    return Setting(**(fields | changes))


def make(real: Real, positions: tuple[int, ...] = (1, 4), **changes: Any) -> LlamaCppForward:
    """Return the kernel of a setting over the real weights."""
    execution = ExecutionContext(weights={"small": real.weights}, cache_bytes=1 << 20)
    made = make_kernel(make_engine_setting(real.weights, **changes), positions, execution)
    assert isinstance(made, LlamaCppForward)
    return made


@pytest.mark.parametrize("repack", [True, False])
def test_a_kernel_runs_and_says_what_it_ran(real: Real, loaded: Library, repack: bool) -> None:  # noqa: FBT001
    """A kernel's forwards are finite, and its record names library, headers, weights and types."""
    made = make(real, repack=repack, batch=2)
    assert all(made.finite(n) for n in (1, 4))
    record = made.loaded()
    assert isinstance(real.weights, WeightsFile)
    assert (record.engine, record.release, record.repack) == ("llama_cpp", "3.22.1", repack)
    assert record.weights_sha256 == real.weights.sha256
    assert record.weights_bytes == real.path.stat().st_size
    assert (record.library_sha256, record.header_sha256) == (loaded.files, real.build.abi.headers)
    assert {matrix.type for matrix in record.matrices} == {"q4_1", "q8_0"}
    assert made.operations() == tuple(
        f"mul_mat {t}" for t in sorted({m.type for m in record.matrices})
    )
    assert made.cache == "cold"


def test_work_grows_by_the_positions(real: Real) -> None:
    """FLOPs of products grow with b N, of attention with keys; weights and cache are read once."""
    header = read_header(real.path)
    setting, entry = make_engine_setting(real.weights), cached_bytes(header)
    one, four = (forward_work(setting, header, n, entry) for n in (1, 4))
    wide = forward_work(structs.replace(setting, batch=4), header, 1, entry)
    assert one.flop_logical > 2 * 100_000_000
    assert 4 * one.flop_logical < four.flop_logical < 4.01 * one.flop_logical
    assert wide.flop_logical == 4 * one.flop_logical
    assert one.bytes_compulsory < four.bytes_compulsory < wide.bytes_compulsory
    assert wide.bytes_compulsory < 1.1 * one.bytes_compulsory
    half = forward_work(setting, header, 1, entry // 2)
    assert one.bytes_compulsory - half.bytes_compulsory == entry // 2 * (8 + 1)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_every_row_s_logits_are_checked(
    real: Real, monkeypatch: pytest.MonkeyPatch, bad: float
) -> None:
    """A logit that is not finite is detected in any row of any request."""
    made = make(real, batch=2)
    for wrong in range(8):
        rows = [[0.0, bad if row == wrong else 1.0] for row in range(8)]
        monkeypatch.setattr(made._context, "logits", rows.__getitem__)
        assert not made.finite(4)


@pytest.mark.parametrize("n", [1, 4])
def test_the_shares_of_a_forward(real: Real, n: int) -> None:
    """A watched forward's parts are those of a dense model, positive, and of several roles."""
    made = make(real)
    for _ in range(2):
        part_us = made.shares(n)
        assert set(part_us) == ROLES
        assert all(us > 0 for us in part_us.values())
    assert made.finite(n)


@pytest.mark.slow
def test_weights_are_loaded_once_an_order(real: Real) -> None:
    """Settings that store weights alike share them."""
    execution = ExecutionContext(weights={"small": real.weights})
    settings = [
        make_engine_setting(real.weights, context=context, repack=repack)
        for context in (0, 8) for repack in (True, False)
    ]  # fmt: skip
    made = [LlamaCppForward(setting, (1,), execution) for setting in settings]
    assert made[0]._model is made[2]._model
    assert made[1]._model is made[3]._model
    assert made[0]._model is not made[1]._model


def own(tmp_path: Path, raw: bytes) -> tuple[AnyWeights, ExecutionContext]:
    """Return a user's own weights, and the context in which their kernel runs."""
    path = tmp_path / "model.gguf"
    path.write_bytes(raw)
    weights = WeightsFile(file_type="q8_0", sha256=sha256(raw))
    execution = ExecutionContext(weights={"small": weights}, files={weights.sha256: path})
    return weights, execution


@pytest.mark.parametrize(
    "raw",
    [b"", b"text and no model", SMALL[:60], SMALL[:-40], SMALL[:8] + b"\xff" * 8 + SMALL[16:]],
    ids=["empty", "text", "cut header", "cut tensors", "lying"],
)
def test_a_file_of_no_model_never_reaches_the_library(
    raw: bytes, tmp_path: Path, nothing_loads: None
) -> None:
    """A user's file that is not a complete GGUF file is one error; nothing is loaded."""
    weights, execution = own(tmp_path, raw)
    with pytest.raises((EvidenceError, ConfigError)) as caught:
        make_kernel(make_engine_setting(weights), (1,), execution)
    assert "\n" not in str(caught.value)


def test_a_header_that_is_true_of_no_model_is_one_error(
    tmp_path: Path, real: Real, loaded: Library
) -> None:
    """A well-formed file that the library rejects is refused with the library's message."""
    weights, execution = own(tmp_path, SMALL)
    with pytest.raises(NearfreeError, match=r"model\.gguf") as caught:
        make_kernel(make_engine_setting(weights), (1,), execution)
    assert "\n" not in str(caught.value)


def test_positions_beyond_the_model_are_refused(real: Real, nothing_loads: None) -> None:
    """L + N above the file's context length is one error; the largest that fits is accepted."""
    with pytest.raises(EvidenceError, match=r"L \+ N = 8193 positions are more than .*'s 8192"):
        make(real, (1, 193), context=8000)
    with pytest.raises(AssertionError, match="was opened"):
        make(real, (1, 192), context=8000)


def test_a_model_too_large_for_memory_is_refused(
    real: Real, monkeypatch: pytest.MonkeyPatch, nothing_loads: None
) -> None:
    """Weights with their cache that do not fit are refused before anything is loaded."""
    held = real.path.stat().st_size
    monkeypatch.setattr(kernel, "free_host_bytes", lambda: held)
    with pytest.raises(EvidenceError, match=r"takes [\d.]+ GB, and [\d.]+ GB are free"):
        make(real, (1, 32), batch=8, context=1024)
    for free in (1 << 40, None):
        monkeypatch.setattr(kernel, "free_host_bytes", lambda free=free: free)
        with pytest.raises(AssertionError, match="was opened"):
            make(real)


def test_weights_in_memory_are_not_counted_again(
    real: Real, monkeypatch: pytest.MonkeyPatch, loaded: Library
) -> None:
    """A setting whose weights another one loaded needs room for its cache; others for both."""
    execution = ExecutionContext(weights={"small": real.weights})
    setting = make_engine_setting(real.weights)
    LlamaCppForward(setting, (1,), execution)
    half = stored_bytes(read_header(real.path)) // 2
    monkeypatch.setattr(kernel, "free_host_bytes", lambda: half)
    LlamaCppForward(structs.replace(setting, context=9), (1,), execution)
    for other, where in (
        (structs.replace(setting, repack=False), execution),
        (setting, ExecutionContext(weights={"small": real.weights})),
        (structs.replace(setting, batch=64, context=1000), execution),
    ):
        with pytest.raises(EvidenceError, match="GB are free"):
            LlamaCppForward(other, (1,), where)


def test_more_threads_than_cpus_are_refused(
    real: Real, monkeypatch: pytest.MonkeyPatch, nothing_loads: None
) -> None:
    """More threads than CPUs are refused, whichever option set them."""
    monkeypatch.setattr(threads, "usable_cpus", lambda: 2)
    with pytest.raises(EvidenceError, match="3 threads are more than the 2 CPUs"):
        make(real, threads=3)


def test_weights_are_compared_with_their_hash(
    tmp_path: Path, cache: Path, nothing_loads: None
) -> None:
    """Weights that are missing, changed or not made yet are refused with their path."""
    weights, execution = own(tmp_path, SMALL)
    assert weights_path(weights, execution.files) == tmp_path / "model.gguf"
    with pytest.raises(EvidenceError, match=f"the weights {weights.digest} are not here"):
        weights_path(weights, {})
    (tmp_path / "model.gguf").write_bytes(SMALL + b".")
    with pytest.raises(EvidenceError, match="has other bytes than the weights"):
        weights_path(weights, execution.files)
    random = RandomWeights(file_type="q8_0", config={}, release="3.22.1")
    with pytest.raises(EvidenceError, match="were not made yet"):
        weights_path(random, {})


def test_a_changed_library_is_never_loaded(
    real: Real, tmp_path: Path, cache: Path, nothing_loads: None
) -> None:
    """A kernel whose library differs in one byte is refused."""
    assert isinstance(real.weights, WeightsFile)
    folder = cache / "engines" / "llama_cpp-3.22.1"
    folder.mkdir(parents=True)
    for path in real.folder.iterdir():
        (folder / path.name).symlink_to(path)
    changed = next(folder.glob("libllama*"))
    raw = bytearray(changed.read_bytes())
    changed.unlink()
    raw[-1] ^= 1
    changed.write_bytes(raw)
    execution = ExecutionContext(
        weights={"small": real.weights}, files={real.weights.sha256: real.path}
    )
    with pytest.raises(LockError, match=changed.name):
        make_kernel(make_engine_setting(real.weights), (1,), execution)


def test_an_engine_runs_on_a_cpu_alone(real: Real, nothing_loads: None) -> None:
    """The prebuilt library has no GPU kernels: a GPU platform is refused."""
    execution = ExecutionContext(device="cuda", weights={"small": real.weights})
    with pytest.raises(EvidenceError, match="on cpu, not on cuda"):
        make_kernel(make_engine_setting(real.weights), (1,), execution)


def test_weights_digests_tell_weights_apart() -> None:
    """Random weights differ by config, format, seed, form and release; a file by its bytes."""
    first = RandomWeights(file_type="q8_0", config={"a": 1}, release="1")
    others = [
        structs.replace(first, **change)
        for change in (
            {"config": {"a": 2}}, {"file_type": "f16"}, {"seed": 1}, {"form": 2}, {"release": "2"}
        )
    ]  # fmt: skip
    assert len({setting.digest for setting in (first, *others)}) == 6
    assert structs.replace(first, config={"a": 1}).digest == first.digest
    assert WeightsFile(file_type="f16", sha256="ab" * 32).digest == "ab" * 6
