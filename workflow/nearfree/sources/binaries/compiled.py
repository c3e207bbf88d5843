"""MoE kernels compiled ahead of time, in the event log: compiled once for the blocks in use.

Triton comes from the environment `interpreter`, which its own lock pins and `nearfree environment
make interpreter` installs. It compiles in a process and a folder of its own, without a device.
"""

import json
import subprocess
from collections.abc import Callable, Iterable, Mapping
from itertools import groupby, product
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from nearfree.backends.environments.lock import Environment, pins
from nearfree.core.plan import CompilePlan
from nearfree.core.scopes import SOURCES
from nearfree.errors import LockError, SourceError, printable
from nearfree.hardware.occupancy import resident_blocks
from nearfree.log.events import CompiledBlock, KernelCompiled
from nearfree.log.evidence import newest_takes, read_scope
from nearfree.log.names import Layout
from nearfree.log.seal import Seal
from nearfree.log.take import ensure_events, take_name
from nearfree.sources.answers.granularity import with_pinned_triton
from nearfree.sources.answers.intervals import CompiledInterval
from nearfree.sources.answers.lookup import DEFAULT_STAGES, DEFAULT_WARPS, TunedFiles
from nearfree.sources.answers.moe import Block, MoeQuery, MoeRules
from nearfree.sources.binaries.dumper import Dumper, list_functions, pinned_dumper
from nearfree.sources.binaries.kernels import functions
from nearfree.sources.binaries.moe_kernel import (
    KERNEL,
    CompileTarget,
    KernelSource,
    compile_requests,
    extract_kernel,
    pinned_kernel,
    verified_text,
)
from nearfree.sources.extraction import Extraction
from nearfree.sources.fetching.cache import Cache
from nearfree.sources.fetching.fetch import fetch
from nearfree.sources.record import stream_name

COMPILER = Path(__file__).with_name("compiler.py")
ENVIRONMENT = "interpreter"
ARCHITECTURES = (80, 89, 90, 100, 120)
"""Compute capabilities that kernels are compiled for."""
TIMEOUT_S = 3600
_LAYER_SHAPES = (
    (8, 2, 14336, 4096),
    (64, 6, 1408, 2048),
    (128, 8, 768, 2048),
    (256, 8, 2048, 7168),
)
"""Layers that stand for those without a tuned file: experts, top_k, d_ff, d_model."""
_TOKENS = tuple(2**n for n in range(14))


def blocks_in_use(
    extraction: Extraction, sm_of: Callable[[str], int | None]
) -> tuple[CompileTarget, ...]:
    """Return the blocks that a release takes for 16-bit layers, by compute capability.

    `sm_of` returns the compute capability of a device's name, None if it is unknown.
    """
    targets = set()
    for tuned in extraction.tuned:
        unused = tuned.odd or tuned.dtype or tuned.down or not tuned.device
        sm = None if unused else sm_of(tuned.device or "")
        if sm in ARCHITECTURES and tuned.block_size_n and tuned.block_size_k:
            block_sizes = (tuned.block_size_m, tuned.block_size_n, tuned.block_size_k)
            count = len(tuned.tokens)
            warps = tuned.num_warps or (DEFAULT_WARPS,) * count
            stages = tuned.num_stages or (DEFAULT_STAGES,) * count
            targets |= {
                CompileTarget(sm, *values)
                for values in zip(*block_sizes, warps, stages, strict=True)
            }
    rules = extraction.by_name()
    for sm, (experts, top_k, d_ff, d_model) in product(ARCHITECTURES, _LAYER_SHAPES):
        query = MoeQuery(experts=experts, top_k=top_k, d_ff=d_ff, d_model=d_model, sm=sm)
        untuned_rules = MoeRules(rules, TunedFiles(()), query, _TOKENS[-1])
        for tokens in _TOKENS:
            target = _target(untuned_rules.at(tokens), sm)
            if target is not None:
                targets.add(target)
    return tuple(sorted(targets))


def _target(block: Block, sm: int) -> CompileTarget | None:
    if block.block_n is None or block.block_k is None:
        return None
    sizes = block.value, block.block_n, block.block_k
    warps, stages = block.num_warps or DEFAULT_WARPS, block.num_stages or DEFAULT_STAGES
    return CompileTarget(sm, *sizes, warps, stages)


def _stream(package: str, version: str) -> str:
    return f"compiled_{stream_name(package, version)}"


def record_compiled(
    layout: Layout,
    extraction: Extraction,
    blocks: Iterable[CompileTarget],
    *,
    cache: Cache,
    offline: bool = False,
    take: int = 1,
) -> Seal:
    """Make sure that a release's kernel, compiled for some blocks, is in the log.

    Raises
    ------
    ConfigError
        No kernel of the release is pinned.
    LockError
        The compiler's environment is not installed.
    SourceError
        The kernel file is not the pinned one, or the compiler fails on it.
    """
    path, digest = pinned_kernel(extraction.package, extraction.version)
    environment = Environment(ENVIRONMENT)
    plan = CompilePlan(
        package=extraction.package,
        version=extraction.version,
        file_sha256=digest,
        lock_sha256=environment.sha256,
        blocks=tuple(tuple(block) for block in blocks),
    )

    def events() -> list[KernelCompiled]:
        if not environment.complete:
            raise LockError(
                f"the compiler's environment {environment.folder} is not installed",
                remedy=f"Run `nearfree environment make {ENVIRONMENT}`",
            )
        pattern = path.replace(".", r"\.")
        source = fetch(
            extraction.package, extraction.version, pattern, cache=cache, offline=offline
        )
        dumper = pinned_dumper(cache=cache, offline=offline)
        text = verified_text(source.raw(path), path, digest)
        targets = [CompileTarget(*block) for block in plan.blocks]
        return [
            KernelCompiled(
                package=extraction.package,
                version=extraction.version,
                file=path,
                file_sha256=digest,
                kernel=KERNEL,
                dtype="bfloat16",
                compiler=f"triton {pins(environment.locks[-1])['triton']}",
                lock_sha256=environment.sha256,
                dumper=dumper.name,
                dumper_sha256=dumper.sha256,
                blocks=tuple(_compile(environment, extract_kernel(text, path), targets, dumper)),
            )
        ]

    command = f"nearfree rules compile {extraction.package}=={extraction.version}"
    name = take_name(SOURCES, _stream(plan.package, plan.version), take, plan)
    return ensure_events(layout, name, plan, command, events)


def _compile(
    environment: Environment, kernel: KernelSource, targets: list[CompileTarget], dumper: Dumper
) -> list[CompiledBlock]:
    with TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "kernel.py").write_text(kernel.text, "utf-8")
        (folder / "questions.json").write_text(
            json.dumps(compile_requests(kernel, targets)), "utf-8"
        )
        files = [str(folder / file_name) for file_name in ("kernel.py", "questions.json")]
        try:
            process = subprocess.run(
                [str(environment.python.absolute()), "-I", str(COMPILER), *files, name],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                cwd=name,
                env={"PATH": "/usr/bin:/bin", "HOME": name, "TRITON_CACHE_DIR": f"{name}/cache"},
                timeout=TIMEOUT_S,
                check=True,
            )
            answers: list[dict[str, Any]] = [
                json.loads(line) for line in process.stdout.splitlines()
            ]
        except (OSError, subprocess.SubprocessError, ValueError) as error:
            raise SourceError(
                f"the compiler of {environment.folder} fails ({type(error).__name__})",
                remedy=f"Reinstall it with `nearfree environment make {ENVIRONMENT}`",
            ) from error
        failures = [answer["error"] for answer in answers if "error" in answer]
        if failures or len(answers) != len(targets):
            reason = "some blocks have no answer"
            if failures:
                reason = printable(failures[0]).replace(name, "")
            raise SourceError(f"{KERNEL} is not compiled: {reason}", remedy="Report it")
        return [
            _compiled_block(target, answer, (folder / answer["cubin"]).read_bytes(), dumper)
            for target, answer in zip(targets, answers, strict=True)
        ]


def _compiled_block(
    target: CompileTarget, answer: Mapping[str, Any], cubin: bytes, dumper: Dumper
) -> CompiledBlock:
    listing = list_functions(cubin, dumper, KERNEL)
    (kernel,) = (function for function in functions(listing, target.sm) if function.name == KERNEL)
    return CompiledBlock(
        *target,
        registers=kernel.registers,
        shared_bytes=answer["shared_bytes"],
        blocks_an_sm=resident_blocks(
            target.sm,
            registers=kernel.registers,
            shared_bytes=answer["shared_bytes"],
            warps=target.warps,
            tensor_columns=answer["tensor_columns"],
        ),
        instruction=answer["instruction"],
    )


def recorded_compiled(layout: Layout, package: str, version: str) -> KernelCompiled | None:
    """Return the newest record of a release's compiled kernel; None if the log has none."""
    takes = read_scope(layout, SOURCES, stream=_stream(package, version))
    newest = newest_takes(takes, KernelCompiled)
    return newest[0].events_of(KernelCompiled)[-1].data if newest else None


def compiled_intervals(
    layout: Layout, extraction: Extraction, query: MoeQuery, first: int, last: int
) -> tuple[CompiledInterval, ...]:
    """Return the SM resources that a layer's compiled blocks use; empty where none was compiled.

    The layer is one in 16 bits, on a device whose compute capability is known.
    """
    record = recorded_compiled(layout, extraction.package, extraction.version)
    if record is None or query.sm is None or query.dtype != "bf16" or query.kernel:
        return ()
    compiled_blocks = {
        CompileTarget(*(getattr(block, name) for name in CompileTarget._fields)): block
        for block in record.blocks
    }
    layer = with_pinned_triton(extraction, query)
    rules = MoeRules(extraction.by_name(), TunedFiles(extraction.tuned), layer, last)
    targets = [(tokens, _target(rules.at(tokens), query.sm)) for tokens in range(first, last + 1)]
    return tuple(
        CompiledInterval(
            first=run[0][0],
            last=run[-1][0],
            block=(block.block_m, block.block_n, block.block_k),
            warps=block.warps,
            stages=block.stages,
            registers=block.registers,
            shared_bytes=block.shared_bytes,
            blocks_an_sm=block.blocks_an_sm,
            instruction=block.instruction,
            compiler=record.compiler,
        )
        for target, same_target in groupby(targets, lambda point: point[1])
        if target is not None and (block := compiled_blocks.get(target)) is not None
        for run in [list(same_target)]
    )
