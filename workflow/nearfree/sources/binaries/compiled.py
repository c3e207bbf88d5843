"""MoE kernels compiled ahead of time, in the event log: made once for the blocks in use, read back.

Triton comes from the environment `interpreter`, which its own lock pins and `nearfree environment
make interpreter` installs; it compiles in a process and a folder of its own, without a device.
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
from nearfree.log.names import Layout, TakeName
from nearfree.log.seal import Seal
from nearfree.log.take import ensure_events, take_name
from nearfree.sources.answers.granularity import with_pinned
from nearfree.sources.answers.intervals import CompiledInterval
from nearfree.sources.answers.lookup import DEFAULT_STAGES, DEFAULT_WARPS, TunedFiles
from nearfree.sources.answers.moe import Block, MoeQuery, MoeRules
from nearfree.sources.binaries.dumper import Dumper, list_functions, pinned_dumper
from nearfree.sources.binaries.kernels import functions
from nearfree.sources.binaries.moe_kernel import (
    KERNEL,
    Asked,
    Cut,
    checked,
    cut,
    pinned,
    questions,
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
_SHAPES = ((8, 2, 14336, 4096), (64, 6, 1408, 2048), (128, 8, 768, 2048), (256, 8, 2048, 7168))
_TOKENS = tuple(2**n for n in range(14))


def blocks_in_use(found: Extraction, sm_of: Callable[[str], int | None]) -> tuple[Asked, ...]:
    """Return the blocks of layers in 16 bits that a release takes, by compute capability.

    Parameters
    ----------
    sm_of
        Returns the compute capability of a device's name, None if it is unknown.
    """
    asked = set()
    for tuned in found.tuned:
        other = tuned.odd or tuned.dtype or tuned.down or not tuned.device
        sm = None if other else sm_of(tuned.device or "")
        if sm in ARCHITECTURES and tuned.block_size_n and tuned.block_size_k:
            sizes = (tuned.block_size_m, tuned.block_size_n, tuned.block_size_k)
            count = len(tuned.tokens)
            warps = tuned.num_warps or (DEFAULT_WARPS,) * count
            stages = tuned.num_stages or (DEFAULT_STAGES,) * count
            asked |= {Asked(sm, *each) for each in zip(*sizes, warps, stages, strict=True)}
    rules = found.by_name()
    for sm, (experts, top_k, d_ff, d_model) in product(ARCHITECTURES, _SHAPES):
        query = MoeQuery(experts=experts, top_k=top_k, d_ff=d_ff, d_model=d_model, sm=sm)
        plain = MoeRules(rules, TunedFiles(()), query, _TOKENS[-1])
        asked |= {each for n in _TOKENS if (each := _asked(plain.at(n), sm)) is not None}
    return tuple(sorted(asked))


def _asked(block: Block, sm: int) -> Asked | None:
    if block.block_n is None or block.block_k is None:
        return None
    sizes = block.value, block.block_n, block.block_k
    warps, stages = block.num_warps or DEFAULT_WARPS, block.num_stages or DEFAULT_STAGES
    return Asked(sm, *sizes, warps, stages)


def compile_take(plan: CompilePlan, take: int = 1) -> TakeName:
    """Return the name of the take of a compiled kernel."""
    return take_name(SOURCES, _stream(plan.package, plan.version), take, plan)


def _stream(package: str, version: str) -> str:
    return f"compiled_{stream_name(package, version)}"


def record_compiled(
    layout: Layout,
    found: Extraction,
    blocks: Iterable[Asked],
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
        The environment of the compiler is not there.
    SourceError
        The kernel is not the pinned one, or the compiler refuses it.
    """
    path, digest = pinned(found.package, found.version)
    environment = Environment(ENVIRONMENT)
    plan = CompilePlan(
        package=found.package,
        version=found.version,
        file_sha256=digest,
        lock_sha256=environment.sha256,
        blocks=tuple(tuple(each) for each in blocks),
    )

    def events() -> list[KernelCompiled]:
        if not environment.complete:
            raise LockError(
                f"{environment.folder}, which has the compiler, is not there",
                remedy=f"Run `nearfree environment make {ENVIRONMENT}`",
            )
        wanted = path.replace(".", r"\.")
        source = fetch(found.package, found.version, wanted, cache=cache, offline=offline)
        dumper = pinned_dumper(cache=cache, offline=offline)
        text = checked(source.raw(path), path, digest)
        asked = [Asked(*each) for each in plan.blocks]
        return [
            KernelCompiled(
                package=found.package,
                version=found.version,
                file=path,
                file_sha256=digest,
                kernel=KERNEL,
                dtype="bfloat16",
                compiler=f"triton {pins(environment.locks[-1])['triton']}",
                lock_sha256=environment.sha256,
                dumper=dumper.name,
                dumper_sha256=dumper.sha256,
                blocks=tuple(_compiled(environment, cut(text, path), asked, dumper)),
            )
        ]

    command = f"nearfree rules compile {found.package}=={found.version}"
    return ensure_events(layout, compile_take(plan, take), plan, command, events)


def _compiled(
    environment: Environment, kernel: Cut, asked: list[Asked], dumper: Dumper
) -> list[CompiledBlock]:
    with TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "kernel.py").write_text(kernel.text, "utf-8")
        (folder / "questions.json").write_text(json.dumps(questions(kernel, asked)), "utf-8")
        files = [str(folder / each) for each in ("kernel.py", "questions.json")]
        try:
            done = subprocess.run(
                [str(environment.python.absolute()), "-I", str(COMPILER), *files, name],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                cwd=name,
                env={"PATH": "/usr/bin:/bin", "HOME": name, "TRITON_CACHE_DIR": f"{name}/cache"},
                timeout=TIMEOUT_S,
                check=True,
            )
            answers: list[dict[str, Any]] = [json.loads(each) for each in done.stdout.splitlines()]
        except (OSError, subprocess.SubprocessError, ValueError) as error:
            raise SourceError(
                f"the compiler of {environment.folder} stops ({type(error).__name__})",
                remedy=f"Make it anew with `nearfree environment make {ENVIRONMENT}`",
            ) from error
        refused = [answer["error"] for answer in answers if "error" in answer]
        if refused or len(answers) != len(asked):
            why = printable(refused[0]).replace(name, "") if refused else "it answers in part"
            raise SourceError(f"{KERNEL} is not compiled: {why}", remedy="Report it")
        return [
            _block(each, answer, (folder / answer["cubin"]).read_bytes(), dumper)
            for each, answer in zip(asked, answers, strict=True)
        ]


def _block(asked: Asked, answer: Mapping[str, Any], cubin: bytes, dumper: Dumper) -> CompiledBlock:
    listing = list_functions(cubin, dumper, KERNEL)
    (function,) = (each for each in functions(listing, asked.sm) if each.name == KERNEL)
    return CompiledBlock(
        *asked,
        registers=function.registers,
        shared_bytes=answer["shared_bytes"],
        blocks_an_sm=resident_blocks(
            asked.sm,
            registers=function.registers,
            shared_bytes=answer["shared_bytes"],
            warps=asked.warps,
            tensor_columns=answer["tensor_columns"],
        ),
        instruction=answer["instruction"],
    )


def recorded_compiled(layout: Layout, package: str, version: str) -> KernelCompiled | None:
    """Return what the log says of a release's compiled kernel; None if it says nothing."""
    takes = read_scope(layout, SOURCES, stream=_stream(package, version))
    newest = newest_takes(takes, KernelCompiled)
    return newest[0].of(KernelCompiled)[-1].data if newest else None


def compiled_intervals(
    layout: Layout, found: Extraction, query: MoeQuery, first: int, last: int
) -> tuple[CompiledInterval, ...]:
    """Return what a layer's blocks take of an SM, where it was compiled; empty where it was not.

    Parameters
    ----------
    query
        The layer, of 16 bits, on a device whose compute capability is known.
    first, last
        The numbers of tokens, both ends included.
    """
    known = recorded_compiled(layout, found.package, found.version)
    if known is None or query.sm is None or query.dtype != "bf16" or query.kernel:
        return ()
    made = {Asked(*(getattr(each, name) for name in Asked._fields)): each for each in known.blocks}
    layer = with_pinned(found, query)
    rules = MoeRules(found.by_name(), TunedFiles(found.tuned), layer, last)
    points = [(n, _asked(rules.at(n), query.sm)) for n in range(first, last + 1)]
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
            compiler=known.compiler,
        )
        for asked, points_alike in groupby(points, lambda point: point[1])
        if asked is not None and (block := made.get(asked)) is not None
        for run in [list(points_alike)]
    )
