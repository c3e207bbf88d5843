"""Claims on how boundaries depend on batch, experts per token, context, routing and tolerance."""

from collections.abc import Iterator
from itertools import groupby, pairwise

from nearfree.core.setting import FIELDS
from nearfree.derive.claims.cases import Case, at_least, doublings, n_max, same, setting_case
from nearfree.derive.claims.scope_tables import Row, ScopeTables, pairs

_IDEAL_ROUTINGS = "balanced", "skewed"
_FROM_5_PERCENT, _FROM_10_PERCENT, _TO_30_PERCENT = 0.0499, 0.0999, 0.3001
_FINE_GRID_FACTOR = 2


def inverse_batch(
    tables: ScopeTables, *modules: str, epsilon: float | None = None
) -> Iterator[Case]:
    """Yield whether b N_max is the same at every two batch sizes.

    The text states the tolerance `epsilon` unless it is the headline's.
    """
    note = "" if epsilon is None else f", tolerance {epsilon:.0%}"
    for a, b in pairs(tables.bounds(*modules, epsilon=epsilon), "batch"):
        agrees = same(a, b, (a["batch"], b["batch"]))
        yield _pair(a, b, "batch", agrees=agrees, factor=a["batch"] / b["batch"], note=note)


def inverse_batch_anywhere(tables: ScopeTables, *modules: str) -> Iterator[Case]:
    """Yield the cases of `inverse_batch` at every tolerance of the tables."""
    for epsilon in sorted({row["epsilon"] for rows in tables.curves for row in rows}):
        yield from inverse_batch(tables, *modules, epsilon=epsilon)


def constant(
    tables: ScopeTables,
    module: str,
    *,
    varied: str,
    routing: str | None = None,
    most: int | None = None,
) -> Iterator[Case]:
    """Yield whether N_max is the same, to a grid step, where only one column varies.

    `routing` is the only one to check, for models None means dense ones; `most` is the largest
    value of the column to check.
    """
    rows = _bounds_of_routings(tables, module, routing)
    kept = [row for row in rows if most is None or (row[varied] or 0) <= most]
    for a, b in pairs(kept, varied):
        yield _pair(a, b, varied, agrees=same(a, b))


def never_rises(
    tables: ScopeTables, module: str, *, varied: str, routing: str | None = None
) -> Iterator[Case]:
    """Yield whether N_max is no larger where one column is larger.

    `routing` is the only one to check; for models None means dense ones.
    """
    for a, b in pairs(_bounds_of_routings(tables, module, routing), varied):
        yield _pair(a, b, varied, agrees=at_least(a, b))


def _pair(
    a: Row, b: Row, varied: str, *, agrees: bool | None, factor: float = 1, note: str = ""
) -> Case:
    symbol = FIELDS[varied].symbol
    text = f"{n_max(a)} at {symbol} = {a[varied]}, {n_max(b)} at {symbol} = {b[varied]}{note}"
    gap = doublings(a["n_max"] * factor, b["n_max"])
    return setting_case(a, text, b, agrees=agrees, gap=gap, varied=varied)


def balanced_above_skewed(tables: ScopeTables, module: str) -> Iterator[Case]:
    """Yield whether N_max of balanced routing is no smaller than that of skewed routing."""
    for a, b in pairs(_bounds_of_routings(tables, module, *_IDEAL_ROUTINGS), "routing"):
        text, gap = f"{n_max(a)} balanced, {n_max(b)} skewed", doublings(a["n_max"], b["n_max"])
        yield setting_case(a, text, b, agrees=at_least(a, b), gap=gap)


def backends_agree(tables: ScopeTables, module: str) -> Iterator[Case]:
    """Yield whether vLLM's and SGLang's MoE layers have the same boundary at the same setting."""
    rows = [row for row in tables.bounds(module) if row["backend"].startswith(("vllm", "sglang"))]
    for a, b in pairs(rows, "backend"):
        text = f"{n_max(a)} with {a['backend']}, {n_max(b)} with {b['backend']}"
        gap = doublings(a["n_max"], b["n_max"])
        yield setting_case(a, text, b, agrees=same(a, b), gap=gap)


def real_between(tables: ScopeTables, *modules: str) -> Iterator[Case]:
    """Yield whether other routings lie below balanced and above skewed ones."""
    for module in modules:
        for a, b in pairs([row for row in tables.bounds(module) if row["routing"]], "routing"):
            ideal, real = (a, b) if a["routing"] in _IDEAL_ROUTINGS else (b, a)
            ideal_routing, real_routing = ideal["routing"], real["routing"]
            if ideal_routing not in _IDEAL_ROUTINGS or real_routing in _IDEAL_ROUTINGS:
                continue
            agrees = at_least(ideal, real) if ideal_routing == "balanced" else at_least(real, ideal)
            text = f"{n_max(real)} by {real_routing}, {n_max(ideal)} {ideal_routing}"
            gap = doublings(real["n_max"], ideal["n_max"])
            yield setting_case(real, text, ideal, agrees=agrees, gap=gap)


def _bounds_of_routings(tables: ScopeTables, module: str, *routings: str | None) -> list[Row]:
    return [row for row in tables.bounds(module) if row["routing"] in routings]


def same_n(
    tables: ScopeTables,
    *modules: str,
    context: int = 0,
    routing: str | None = None,
    least: float = _FROM_5_PERCENT,
) -> Iterator[Case]:
    """Yield whether N_max is the same at every tolerance up to 30 %.

    `context` is the smallest L to check, for settings that have one.
    """
    for rows in _tolerance_sweeps(tables, modules, least):
        if (rows[0]["context"] or context) >= context and rows[0]["routing"] == routing:
            moved = rows[0]["n_max"] != rows[-1]["n_max"]
            yield _sweep_case(
                rows, agrees=None if moved and _intervals_overlap(rows) else not moved
            )


def same_routed(tables: ScopeTables, *modules: str) -> Iterator[Case]:
    """Yield whether N_max of an MoE FFN is constant: from 5 % (skewed: 10 %) to 30 %."""
    yield from same_n(tables, *modules, routing="balanced")
    yield from same_n(tables, *modules, routing="skewed", least=_FROM_10_PERCENT)


def one_step(tables: ScopeTables, *modules: str, least: float = _FROM_5_PERCENT) -> Iterator[Case]:
    """Yield whether N_max moves by a step of the grid, or a factor of two, at most."""
    for rows in _tolerance_sweeps(tables, modules, least):
        first, last = rows[0], rows[-1]["n_max"]
        within = last <= max(first["next_n"] or 0, _FINE_GRID_FACTOR * first["n_max"])
        yield _sweep_case(
            rows, agrees=True if within else None if _intervals_overlap(rows) else False
        )


def never_falls(tables: ScopeTables, *modules: str) -> Iterator[Case]:
    """Yield whether a wider tolerance never gives a smaller N_max."""
    for rows in _tolerance_sweeps(tables, modules, 0.0, 1.0):
        yield _sweep_case(rows, agrees=all(a["n_max"] <= b["n_max"] for a, b in pairwise(rows)))


def _tolerance_sweeps(
    tables: ScopeTables, modules: tuple[str, ...], least: float, most: float = _TO_30_PERCENT
) -> Iterator[list[Row]]:
    for rows in tables.curves:
        selected = [row for row in rows if least <= row["epsilon"] <= most]
        if len(selected) > 1 and selected[0]["module"] in modules:
            yield selected


def _intervals_overlap(rows: list[Row]) -> bool:
    """Return whether the intervals at the smallest and the largest tolerance overlap."""
    first, last = rows[0], rows[-1]
    return bool(first["n_high"] is not None and first["n_high"] >= last["n_low"])


def _sweep_case(rows: list[Row], *, agrees: bool | None) -> Case:
    runs = [list(run) for _, run in groupby(rows, key=lambda row: int(row["n_max"]))]
    spans = ", ".join(f"{run[0]['n_max']} at {_tolerance_range(run)}" for run in runs)
    noise = " (marked as noise in the paper)" if rows[0]["noisy"] else ""
    gap = doublings(rows[0]["n_max"], rows[-1]["n_max"])
    return setting_case(rows[0], f"N_max {spans}{noise}", *rows[1:], agrees=agrees, gap=gap)


def _tolerance_range(run: list[Row]) -> str:
    first, last = (f"{row['epsilon']:.0%}" for row in (run[0], run[-1]))
    return first if first == last else f"{first} to {last}"
