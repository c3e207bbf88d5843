"""Studies of all modules on one made-up machine, whose times follow from the counted work."""

from collections.abc import Iterator
from typing import Any

from conftest import write_payloads
from derive.tables.logs import ROUNDS, make_visits
from nearfree.core.modules.attention import attention_work
from nearfree.core.modules.dense_ffn import dense_work
from nearfree.core.modules.moe_ffn import moe_work
from nearfree.core.modules.routing import routed_pairs
from nearfree.core.plan import MeasurePlan, Sweep
from nearfree.core.protocols import Interleaved
from nearfree.core.setting import Setting
from nearfree.core.work import ExecutedWork
from nearfree.log.events import KernelProfiled, Payload, WorkCounted
from nearfree.log.names import Layout
from nearfree.log.seal import Seal
from nearfree.log.take import take_name

GRID = (1, 2, 4, 8, 16, 32, 64, 128)
PHI, BETA, FLOOR_US = 80e9, 10e9, 200.0
"""FLOP/s and byte/s of the machine's probe (see `tables.logs.make_probed`), and a launch."""
BLOCK, TILE = 16, 32
EXPERTS: dict[str, Any] = {
    "module": "moe_ffn", "dtype": "float32", "d_model": 256, "d_ff": 128, "experts": 16,
}  # fmt: skip
HEADS: dict[str, Any] = {
    "module": "attention", "backend": "torch_sdpa", "dtype": "float32",
    "heads": 4, "kv_heads": 4, "head_dim": 64,
}  # fmt: skip
DENSE: dict[str, Any] = {
    "module": "dense_ffn", "backend": "torch", "dtype": "float32", "d_model": 512, "d_ff": 1024,
}  # fmt: skip
STUDIES: dict[str, list[tuple[Setting, int]]] = {
    "dense_ffn": [(Setting(**DENSE, batch=batch), 1) for batch in (1, 2, 4)],
    "attention": [(Setting(**HEADS, context=context), 1) for context in (256, 1024, 4096)],
    **{
        f"moe_{routing}{name}": [
            (
                Setting(**EXPERTS, backend=backend, routing=routing, top_k=top_k),
                16 // top_k if routing == "balanced" else 1,
            )
            for top_k in (2, 4)
        ]
        for routing in ("balanced", "skewed")
        for backend, name in (("torch_padded", ""), ("torch_grouped", "_unpadded"))
    },
}
"""Settings and their baseline, by study."""


def work_of(setting: Setting, n: int) -> ExecutedWork:
    """Return the work of a forward: blocks of 16 rows, or tiles of 32 queries and 64 keys."""
    if setting.module == "dense_ffn":
        return dense_work(setting, n, "two products")
    if setting.module == "attention":
        return attention_work(setting, n, "tiles of 32", tile_rows=TILE, tile_keys=64)
    padded = BLOCK if setting.backend == "torch_padded" else None
    return moe_work(setting, routed_pairs(setting, n), "blocks of 16", block_rows=padded)


def latency_us(work: ExecutedWork) -> float:
    """Return the time of a forward by the machine's roofline, in microseconds."""
    return FLOOR_US + 1e6 * max(work.flop_executed / PHI, work.bytes_compulsory / BETA)


def profiled(setting: Setting, n: int) -> KernelProfiled:
    """Return a profiler's counters: a tenth more bytes than compulsory ones."""
    work = work_of(setting, n)
    return KernelProfiled(
        setting=setting,
        n=n,
        profiler="perf 1",
        forwards=2,
        kernels=("gemm", "softmax"),
        kernel_us=latency_us(work) - FLOOR_US,
        flop=float(work.flop_executed),
        dram_bytes=1.1 * work.bytes_compulsory,
        tensor_utilization=0.25,
        dram_utilization=0.5,
    )


def write_module_study(
    layout: Layout, stream: str, *more: Payload, scope: str = "cpu", take: int = 1
) -> Seal:
    """Seal a study of `STUDIES` with its work counted, and more payloads after it."""
    sweeps = tuple(
        Sweep(setting=setting, positions=GRID, baseline=baseline)
        for setting, baseline in STUDIES[stream]
    )
    plan = MeasurePlan(sweeps=sweeps, protocol=Interleaved(rounds=ROUNDS), environment="cpu")
    name = take_name(scope, stream, take, plan)
    return write_payloads(layout, name, plan, *_payloads(sweeps), *more)


def _payloads(sweeps: tuple[Sweep, ...]) -> Iterator[Payload]:
    for sweep in sweeps:
        every = {n: work_of(sweep.setting, n) for n in sweep.positions}
        times = {n: latency_us(work) for n, work in every.items()}
        yield from make_visits(sweep.setting, times, baseline=sweep.baseline)
        for n, work in every.items():
            yield WorkCounted(setting=sweep.setting, n=n, work=work, kernels=("mm", "mul"))
