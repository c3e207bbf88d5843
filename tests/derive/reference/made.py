"""Made-up curves: the forms with known residuals."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from nearfree.core.setting import Setting
from nearfree.derive.reference.build import Curves, curves_by_form, groups_of, kernel_truth
from nearfree.derive.reference.groups import Group, Key, form_us, keys_of
from nearfree.derive.reference.regimes import Reference
from nearfree.derive.reference.siblings import Chip
from nearfree.derive.tables.columns import SETTING_COLUMNS
from nearfree.derive.work_model.family import Array
from nearfree.log.events import LatencyImported
from nearfree.public.curves import ImportedCurves, curves_of
from public.test_curves import curve

from derive.curves import SHEETS
from derive.questions import FACTS, RESOLVER
from derive.work_model.forms import GEMM, LIBRARY, PREFILL, prepared
from derive.work_model.imported import TRUE

EPSILON = 0.2
CHIPS = {
    "a100": Chip(80, 153.0), "h100": Chip(90, 295.0), "h200": Chip(90, 206.0),
    "h800": Chip(90, 295.0), "b200": Chip(100, 292.0),
    "b300": Chip(103, 292.0), "l40s": Chip(89, 419.0),
}  # fmt: skip
Bent = Callable[[dict[str, Any]], float | Array]
"""The residual of a question over its grid."""
ROWS = {**GEMM, "batch": 8, "kernel": "cublas", "platform": "h100", "backend_version": "1.0"}
"""A product whose N_max lies inside its grid of 8 to 1024 rows."""
LAYER = {**LIBRARY, "kernel": "cutlass", "platform": "h100", "backend_version": "1.0"}
HEADS = {**PREFILL, "platform": "h100", "backend_version": "1.0"}
DEPTHS = (3072, 4096, 5120, 6144, 7168, 8192)
"""Each d_model is a model of its own."""


def products(*platforms: str, depths: tuple[int, ...] = DEPTHS, **changes: Any) -> list[Any]:
    """Return questions about products, of each depth K on each platform."""
    return [
        {**ROWS, "d_model": depth, "platform": platform, **changes}
        for platform in platforms or ("h100",)
        for depth in depths
    ]


def straight(_row: dict[str, Any]) -> float:
    """Return zero residuals."""
    return 0.0


def by_depth(row: dict[str, Any]) -> float:
    """Return a residual that grows with the depth K, -0.3 to 0.3."""
    return 0.3 * float(np.log2(row["d_model"] / 5120))


def noisy(seed: int, size: float = 0.1) -> Bent:
    """Return random residuals."""
    random = np.random.default_rng(seed)
    return lambda row: random.normal(0.0, size, len(row["grid"]))


def curves(*questions: dict[str, Any], bent: Bent = straight) -> list[Curves]:
    """Return curves that follow their form times exp(residual), by platform and form."""
    curve_list = []
    for platform in dict.fromkeys(question["platform"] for question in questions):
        for part in prepared(
            *(question for question in questions if question["platform"] == platform)
        ):
            times = form_us(part.family.name, dict(TRUE[part.family.name].values), part.features)
            moved = np.array([
                np.broadcast_to(bent(row), part.counts.shape[1])
                for row in part.rows.iter_rows(named=True)
            ])  # fmt: skip
            members = [f"{platform}/{name}" for name in part.rows["backend_version"]]
            curve_list.append(Curves(part, times * np.exp(moved), members, keys_of(part.rows)))
    return curve_list


def only_curves(*questions: dict[str, Any], bent: Bent = straight) -> Curves:
    """Return curves of one platform and form."""
    (curve_data,) = curves(*questions, bent=bent)
    return curve_data


def only_group(*questions: dict[str, Any], bent: Bent = straight) -> Group:
    """Return the group of curves of one kernel."""
    (group,) = groups_of(only_curves(*questions, bent=bent), EPSILON).values()
    return group


def reference(*questions: dict[str, Any], bent: Bent = straight) -> Reference:
    """Return the groups of some curves."""
    groups: dict[Key, Group] = {}
    for kernel_curve in curves(*questions, bent=bent):
        groups |= groups_of(kernel_curve, EPSILON)
    return Reference(groups, CHIPS)


def by_form(events: ImportedCurves) -> list[Curves]:
    """Return imported curves by platform and form."""
    return list(curves_by_form(kernel_truth(events, SHEETS, EPSILON), events, FACTS, RESOLVER))


def known(imported: Sequence[LatencyImported]) -> Reference:
    """Return the groups of imported curves."""
    every = by_form(curves_of([(event, f"e#{number}") for number, event in enumerate(imported)]))
    groups = {key: group for part in every for key, group in groups_of(part, EPSILON).items()}
    return Reference(groups, CHIPS)


def events(every: Sequence[Curves]) -> Iterator[LatencyImported]:
    """Yield curves as imported events."""
    for part in every:
        rows = part.part.rows.to_dicts()
        for row, times, member in zip(rows, part.latency_us, part.members, strict=True):
            fields = {name: row[name] for name in SETTING_COLUMNS if name != "setting_key"}
            yield curve(
                Setting(**fields), platform=row["platform"], kernel=row["kernel"], member=member,
                backend_version=row["backend_version"], n=tuple(row["grid"]),
                latency_us=tuple(times.tolist()),
            )  # fmt: skip
