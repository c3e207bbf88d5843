"""Compiled kernels: all blocks in use are recorded, with the expected sizes."""

import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from msgspec.structs import replace
from nearfree.cli.common import platform_of
from nearfree.config.files import Config
from nearfree.errors import LockError, SourceError
from nearfree.log.events import CompiledBlock, KernelCompiled
from nearfree.log.names import Layout
from nearfree.sources.answers.moe import MoeQuery
from nearfree.sources.binaries import compiled, dumper
from nearfree.sources.binaries.compiled import (
    ARCHITECTURES,
    blocks_in_use,
    compiled_intervals,
    record_compiled,
    recorded_compiled,
)
from nearfree.sources.binaries.moe_kernel import CompileTarget
from nearfree.sources.extraction import Extraction
from nearfree.sources.fetching.cache import Cache
from nearfree.sources.record import recorded_extraction

ROOT = Path(__file__).parents[3]
LOG, CONFIG = Layout(ROOT / "results"), Config(ROOT / "config")
RELEASES = (("vllm", "0.9.1"), ("vllm", "0.20.2"), ("sglang", "0.5.9"))
each_release = pytest.mark.parametrize("release", RELEASES, ids="-".join)


def sm_of(device: str) -> int | None:
    """Return the compute capability of a device by name."""
    named = platform_of(CONFIG, device)
    return named.sm if named else None


def rules(release: tuple[str, str]) -> Extraction:
    """Return a recorded release."""
    extraction = recorded_extraction(LOG, *release)
    assert extraction is not None
    return extraction


def made(release: tuple[str, str]) -> KernelCompiled:
    """Return its recorded compiled kernel."""
    compiled = recorded_compiled(LOG, *release)
    assert compiled is not None
    return compiled


@each_release
def test_every_block_in_use_is_on_record(release: tuple[str, str]) -> None:
    """Fallbacks of each compute capability and tuned files of its devices are recorded."""
    wanted = blocks_in_use(rules(release), sm_of)
    assert {target.sm for target in wanted} == set(ARCHITECTURES)
    on_record = [
        CompileTarget(*(getattr(block, name) for name in CompileTarget._fields))
        for block in made(release).blocks
    ]
    assert on_record == list(wanted)


@each_release
def test_rows_and_device_decide_the_instruction(release: tuple[str, str]) -> None:
    """Hopper's and Blackwell's instructions need 64 rows; fewer run Ampere's."""
    own = {90: "wgmma.mma_async", 100: "tcgen05.mma"}
    for block in made(release).blocks:
        wide = block.block_m >= 64 and block.sm in own
        assert block.instruction == (own[block.sm] if wide else "mma.sync"), block


@each_release
def test_shared_memory_is_that_of_the_buffers(release: tuple[str, str]) -> None:
    """Shared memory is both operands' tiles times the stages, one fewer for `mma.sync`."""
    for block in made(release).blocks:
        buffers = block.stages - (block.instruction == "mma.sync")
        size = buffers * (block.block_m + block.block_n) * block.block_k * 2
        # Without a loop of loads ahead, what is read or written through it is laid there instead.
        if buffers > 1:
            assert abs(block.shared_bytes - size) <= 2048, block


def test_a_layer_shows_what_its_blocks_take() -> None:
    """Each number of tokens shows its block's use on the device."""
    by_name = rules(("vllm", "0.9.1"))
    sizes = {"experts": 8, "top_k": 2, "d_ff": 14336, "d_model": 4096}
    query = MoeQuery(**sizes, device="NVIDIA A100-SXM4-80GB", sm=80)
    first, second = compiled_intervals(LOG, by_name, query, 1, 64)
    assert (first.first, first.last, first.block) == (1, 8, (16, 32, 64))
    assert (second.first, second.last, second.block) == (9, 64, (64, 64, 32))
    assert first.blocks_an_sm > second.blocks_an_sm
    assert compiled_intervals(LOG, by_name, replace(query, sm=None), 1, 64) == ()
    assert compiled_intervals(LOG, by_name, replace(query, dtype="fp8"), 1, 64) == ()
    assert compiled_intervals(LOG, by_name, replace(query, sm=75), 1, 64) == ()


def test_a_missing_compiler_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the environment the command that makes it is named."""
    shutil.copytree(ROOT / "envs", tmp_path / "envs")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(LockError, match="nearfree environment make interpreter"):
        record_compiled(
            Layout(tmp_path / "results"),
            rules(("vllm", "0.9.1")),
            [CompileTarget(90, 16, 32, 64, 4, 3)],
            cache=Cache(tmp_path / "cache"),
        )
    assert not list(tmp_path.glob("results/**/*.seal.json"))


@pytest.mark.slow
def test_the_real_compiler_makes_what_is_on_record(
    source_cache: Cache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The locked Triton compiles a pinned kernel as recorded, for two devices."""
    site = tmp_path / "site"
    install = ("-m", "pip", "install", "--quiet", "--no-deps", "--no-compile", "--require-hashes")
    lock = ROOT / "envs" / "interpreter.lock"
    subprocess.run([sys.executable, *install, "--target", site, "-r", lock], check=True)
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\nshift\nPYTHONPATH={site} exec {sys.executable} "$@"\n')
    python.chmod(0o700)
    made_here = SimpleNamespace(
        complete=True, folder=tmp_path, python=python, locks=[lock], sha256="0" * 64
    )
    monkeypatch.setattr(compiled, "Environment", lambda _: made_here)
    monkeypatch.chdir(ROOT)
    assert dumper.LOCK.is_file()
    release = ("vllm", "0.9.1")
    known: list[CompiledBlock] = [
        next(block for block in made(release).blocks if block.sm == sm and block.block_m == rows)
        for sm, rows in ((80, 16), (90, 64))
    ]
    targets = [
        CompileTarget(*(getattr(block, name) for name in CompileTarget._fields)) for block in known
    ]
    log = Layout(tmp_path / "results")
    record_compiled(log, rules(release), targets, cache=source_cache)
    compiled_here = recorded_compiled(log, *release)
    assert compiled_here is not None
    assert list(compiled_here.blocks) == known
    with pytest.raises(SourceError, match="is not compiled"):
        record_compiled(
            log, rules(release), [CompileTarget(90, 17, 32, 64, 4, 3)], cache=source_cache
        )
    shutil.rmtree(site)  # hundreds of megabytes
