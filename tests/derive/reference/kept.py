"""Kernels with made-up curves, as event payloads and as a sealed take."""

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import polars as pl
from conftest import write_payloads
from nearfree.core.plan import CalibratePlan
from nearfree.core.scopes import PUBLIC
from nearfree.derive.reference.groups import CURVE_COLUMNS, Coded, Group, Key
from nearfree.derive.reference.record import STREAM, referenced
from nearfree.derive.work_model.families import FAMILIES
from nearfree.log.events import Event, KernelReferenced
from nearfree.log.names import Layout
from nearfree.log.seal import Seal
from nearfree.log.take import take_name

from derive.tables.logs import make_take

SOURCE = "curves 1.0, Apache-2.0, Copyright (c) a maker"
MEMBER = "tables/of_all.parquet"
RATIOS = {1: 1.0, 2: 1.05, 4: 1.15, 8: 1.5, 16: 2.5}
"""N_max is 4 at 20 %, 2 at 10 %."""
PRODUCT: dict[str, Any] = {"d_model": 4096, "d_ff": 8192}
LAYER: dict[str, Any] = {
    "d_model": 2048, "d_ff": 512, "experts": 8, "top_k": 2, "routing": "balanced",
}  # fmt: skip
HEADS: dict[str, Any] = {"heads": 8, "kv_heads": 2, "head_dim": 128}


class Kept(NamedTuple):
    """A curve: its setting, T(baseline) in microseconds, and ratios by N."""

    shape: Mapping[str, Any]
    release: str | None = "1.0"
    first_us: float = 100.0
    ratios: Mapping[int, float] = RATIOS


def kept_kernel(*curves: Kept, source: str = SOURCE, **of: Any) -> KernelReferenced:
    """Return a kernel with its curves; `of` gives fields of its key."""
    named: dict[str, Any] = {
        "platform": "h100", "family": "gemm", "backend": "vllm", "kernel": "cublas",
        "dtype": "bfloat16", "weights": None, "kv_dtype": None,
    }  # fmt: skip
    width = max(len(curve.ratios) for curve in curves)
    counts = np.array([[at < len(curve.ratios) for at in range(width)] for curve in curves])
    n, ratio = np.ones(counts.shape), np.ones(counts.shape)
    for row, curve in enumerate(curves):
        end = len(curve.ratios)
        n[row], n[row, :end] = max(curve.ratios), list(curve.ratios)
        ratio[row, :end] = list(curve.ratios.values())
    coded = Coded.of(np.log(ratio), counts)
    rows = [
        {"backend_version": curve.release, "batch": 1, "member": MEMBER, **curve.shape}
        for curve in curves
    ]
    texts = ("backend_version", "routing", "member")
    types = {name: pl.String if name in texts else pl.Int64 for name in CURVE_COLUMNS}
    key = Key(**(named | of))
    form = FAMILIES[key.family]
    constants = {constant.name: constant.start for constant in form.constants}
    group = Group(
        key=key,
        values={hypothesis: dict(constants) for hypothesis in form.hypotheses},
        curves=pl.DataFrame(rows, schema=types),
        n=n,
        counts=counts,
        first_us=np.array([curve.first_us for curve in curves]),
        ratio=coded,
        residual=coded,
    )
    return referenced(group, source=source, epsilon=0.2, members={MEMBER: "0" * 64})


def kept_events(*kernels: KernelReferenced) -> list[Event]:
    """Return kernels as the events of a take that is not on disk."""
    return make_take(*kernels, scope=PUBLIC).events_of(KernelReferenced)


def write_kept(layout: Layout, *kernels: KernelReferenced, take: int = 1) -> Seal:
    """Seal a take of kernels."""
    on = tuple(sorted({kernel.platform for kernel in kernels}))
    plan = CalibratePlan(source="curves_1_0", files={}, platforms=on, epsilon=0.2, form=take)
    return write_payloads(layout, take_name(PUBLIC, STREAM, take, plan), plan, *kernels)


def kept_on_two() -> list[KernelReferenced]:
    """Return kernels of every module that the table shows, on two platforms, by two backends."""
    families = {"gemm": PRODUCT, "moe_triton": LAYER, "attention_prefill": HEADS}
    return [
        kept_kernel(Kept(shape=shape), platform=platform, family=family, backend=backend)
        for platform in ("h100", "h200")
        for backend in ("sglang", "vllm")
        for family, shape in families.items()
    ]
