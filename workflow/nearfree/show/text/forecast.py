"""The text of `nearfree predict --all`: boundaries by predictor, T(N), evidence and constants."""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import polars as pl

from nearfree.core.predictors import WORK_MODEL
from nearfree.decoders.attention_kinds import Grouped
from nearfree.decoders.ranks.modules import BETWEEN
from nearfree.derive.granularity.graphs import Step
from nearfree.derive.predict.forecast.alternatives import ELSEWHERE
from nearfree.derive.predict.forecast.deployment import Deployment
from nearfree.derive.predict.forecast.doubts import all_caveats
from nearfree.derive.predict.forecast.exits import module_exits
from nearfree.derive.predict.forecast.forecast import Forecast, knobs
from nearfree.derive.predict.forecast.total import MINIMUM, SUM
from nearfree.derive.reference.regimes import REGIME_MEANINGS
from nearfree.derive.work_model.launches import LAUNCH_US
from nearfree.show.text.memory import memory_lines, shared, with_memory

NOT_COUNTED = "norms, residual sums, rotary embeddings and sampling are not counted"
COUNTED = "kernels between modules and the host by an engine's constants"
_ON_CPU = (
    "On a CPU the forward of a GGUF file is predicted: `nearfree predict --engine llama_cpp "
    "--model FILE.gguf`; `nearfree tune llama_cpp` measures how many tokens it should draft. "
)
_LEAST_SHARE = 0.005
NO_LIMIT = "no limit up to there"


def no_forward(query: Deployment) -> str:
    """Return the remedy where T(N) is unknown, with options whose kernels are known."""
    own = _ON_CPU if query.on_cpu else ""
    if query.by_file:
        own += f"By its file {query.moe} runs {query.by_file} for its experts. "
    known = " or ".join(query.instead)
    return own + ELSEWHERE + (f", such as {known}" if known else "")


def columns(rows: Sequence[Sequence[object]], *, indent: int = 2, left: int = 1) -> Iterator[str]:
    """Yield rows as aligned lines, the first row as the heading.

    A column is right-aligned if every cell below its heading is a number, a dash or empty; the
    first `left` columns never are.
    """
    texts = [["" if cell is None else str(cell) for cell in row] for row in rows]
    if not texts:
        return
    widths = [max(map(len, column)) for column in zip(*texts, strict=True)]
    right_aligned = [
        column >= left and all(_numeric(row[column]) for row in texts[1:])
        for column in range(len(widths))
    ]
    for row in texts:
        padded = [
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(row, widths, right_aligned, strict=True)
        ]
        yield (" " * indent + "  ".join(padded)).rstrip()


def _numeric(text: str) -> bool:
    return not text or text[0] in "0123456789.-+[<>" or text in ("unbounded", "refused")


def title(query: Deployment) -> str:
    """Return one line that names the deployment."""
    kernel = f" by {query.moe_kernel}" if query.moe_kernel else ""
    parts = [
        f"{query.decoder.name} on {gpus(query)}",
        formats(query),
        f"b = {query.batch}",
        f"L = {query.context}{window(query)}",
        f"attention {query.attention}",
        *([f"MoE {query.moe}{kernel}", f"{query.routing} routing"] if query.moe else []),
        *([f"served by {query.server}"] if query.server else []),
        *([f"dense {query.dense}"] if query.dense else []),
        *([f"CUDA graphs of {query.graphs.engine}"] if query.graphs else []),
    ]
    return ", ".join(parts)


def gpus(query: Deployment) -> str:
    """Return the platform, with GPU count and parallel degrees where there are several GPUs."""
    return shared(query.platform, query.parallel.degrees)


def formats(query: Deployment) -> str:
    """Return the formats of weights, activations and cache, those that differ only."""
    (weights, activations), kv = query.main, query.formats.kv
    stored = activations if weights == activations else f"{weights} weights with {activations}"
    return stored if kv == query.formats.plain == activations else f"{stored}, {kv} cache"


def window(query: Deployment) -> str:
    """Return the windows and chunks that are shorter than the context, with their layer counts."""
    kinds = query.decoder.attention
    windowed = [
        kind
        for kind in kinds
        if isinstance(kind, Grouped) and kind.most and kind.most < query.context
    ]
    if len(kinds) == 1:
        return f" ({windowed[0].words})" if windowed else ""
    layers = [
        f"{kind.words} in {len(kind.layers)} of {query.decoder.layers} layers" for kind in windowed
    ]
    return f" ({', '.join(layers)})" if windowed else ""


def report(
    forecast: Forecast, index: int, epsilon: float, accepted: float | None = None
) -> Iterator[str]:
    """Yield the full answer for one deployment of a forecast, as lines.

    Parameters
    ----------
    index
        The deployment's position in the forecast.
    accepted
        Measured tokens per forward; adds a column accepted / N_max.
    """
    query = forecast.deployments[index]
    memory = memory_lines(query.memory, query.platform)
    yield from with_memory(title(query), query.memory, memory)
    answers = forecast.answers.filter(deployment=index)
    for baseline in answers["baseline"].unique(maintain_order=True):
        yield ""
        rows = answers.filter(baseline=baseline)
        yield from _boundaries(forecast, rows, epsilon, accepted)
    refusal = forecast.total.refusals[index]
    yield ""
    if refusal is not None:
        yield f"Its T(N) is not predicted: {refusal}. {no_forward(query)}"
    else:
        yield from _curve(forecast, index, epsilon)
        yield ""
        yield from _modules(forecast, index, epsilon)
        yield from _limiter(answers)
        yield from _evidence(answers)
        every = all_caveats(forecast.total, forecast.deployments, index)
        yield from (f"T(N): {caveat}" for caveat in every)


ROUNDING = 1e-12
"""Relative rounding error that a product of a few factors may have."""
BELOW_10 = 9.99
"""The largest number below 10 with two decimals."""


def amount(value: float | None, *, censored: bool = False) -> str:
    """Return a boundary as text: unbounded, refused, at least the grid's end, or a number.

    From 10 on it is rounded down to whole positions: T of one more is beyond the tolerance.
    """
    if value is None:
        return "refused"
    if value == float("inf"):
        return "unbounded"
    if censored:
        return f">= {value:g}"
    whole = math.floor(value * (1 + ROUNDING))
    return f"{whole}" if whole >= 10 else f"{min(value, BELOW_10):.3g}"


def interval(row: dict[str, Any], end: float) -> str:
    """Return the interval of a predictor's answer as text, empty without one.

    Parameters
    ----------
    row
        A row of `Forecast.answers`.
    end
        The largest N of the grid: an end of the interval there is a lower bound.
    """
    if row["low"] is None:
        return ""
    low, high = (f">= {n:g}" if n == end else f"{n:g}" for n in (row["low"], row["high"]))
    return f"[{low}, {high}]"


def _boundaries(
    forecast: Forecast, answers: pl.DataFrame, epsilon: float, accepted: float | None
) -> Iterator[str]:
    baseline, end = answers["baseline"][0], float(forecast.total.grid[-1])
    baseline_note = "" if baseline == 1 else ", where balanced routing activates every expert"
    yield (
        f"N_max, the largest N with T(N) <= {1 + epsilon:g} T({baseline}), "
        f"from N = {baseline}{baseline_note}"
    )
    accepted_head = [] if accepted is None else ["accepted / N_max"]
    head = ["predictor", "N_max", "interval", *accepted_head, "limited by", "rule"]
    rows: list[list[object]] = [[*head]]
    rows += [_boundary(row, end, accepted) for row in answers.to_dicts()]
    yield from columns(rows)


def _boundary(row: dict[str, Any], end: float, accepted: float | None) -> list[object]:
    name = row["predictor"]
    if name == WORK_MODEL and row["composition"] == MINIMUM:
        name = f"{name}, least of modules"
    sign = "<= " if row["censored"] else ""
    accepted_cell = []
    if accepted is not None:
        accepted_cell = [f"{sign}{accepted / (row['n_max'] or math.inf):.2f}"]
    if row["refusal"]:
        return [name, "refused", "", *(["-"] if accepted_cell else []), "", row["refusal"]]
    extended = row["n_max_extended"]
    extended_note = (
        f" (with b, heads and gates: {amount(extended)}, {row['limiting_module_extended']})"
        if extended is not None and amount(extended) != amount(row["n_max"])
        else ""
    )
    value = amount(row["n_max"], censored=row["censored"])
    if row["n_max"] < row["baseline"]:
        value = f"{value} < {row['baseline']}"
    if row["censored"]:
        return [name, value, interval(row, end), *accepted_cell, NO_LIMIT + extended_note, ""]
    limiter = (
        "nothing"
        if row["n_max"] == math.inf
        else f"{row['limiting_module']}: {row['limiting_term']}"
    )
    limiter += extended_note
    return [name, value, interval(row, end), *accepted_cell, limiter, row["evidence"]]


def _curve(forecast: Forecast, index: int, epsilon: float) -> Iterator[str]:
    curve = forecast.curve(index)
    base = forecast.total.model_us[index, 0]
    low_ratio, high_ratio = (forecast.total.moved_us(sign)[index] / base for sign in (-1.0, 1.0))
    roles = [name for name in curve.columns[3:] if curve[name].max() >= _LEAST_SHARE]  # type: ignore[operator]
    printed = telling(curve["ratio"].to_list(), epsilon)
    padding = forecast.total.padding
    steps = padding.steps[index] if padding else []
    head = ["rows", "run as"] if steps else []
    rows: list[list[object]] = [["N", "T(N)/T(1)", "interval", "us", *head, *roles]]
    for point in printed:
        row = curve.row(point, named=True)
        interval = f"{low_ratio[point]:.2f} to {high_ratio[point]:.2f}" if point else ""
        shares = [f"{row[name]:.0%}" for name in roles]
        step_rows = [steps[point].tokens, steps[point].rows] if steps else []
        times = [f"{row['ratio']:.3f}", interval, f"{row['latency_us']:.0f}"]
        rows.append([row["n"], *times, *step_rows, *shares])
    counted = BETWEEN in forecast.total.roles[index].values()
    scope = COUNTED if counted else NOT_COUNTED
    yield f"T(N) by the work model, and each module's share of it ({scope})"
    yield from columns(rows, left=0)
    if steps:
        yield from _steps(forecast.deployments[index], steps, curve["n"].to_list())


def _steps(query: Deployment, steps: Sequence[Step], grid: Sequence[int]) -> Iterator[str]:
    """Yield how a step is padded to CUDA graphs, the source of their sizes, and where none fits."""
    if query.graphs is None:
        return
    sized = next((step for step in reversed(steps) if step.size is not None), steps[0])
    yield (
        f"  rows: tokens of one rank's step; the engine pads it to the next captured number of "
        f"{query.graphs.counts} ({sized.evidence})"
    )
    eager = next((n for n, step in zip(grid, steps, strict=True) if step.size is None), None)
    if eager is not None:
        yield (
            f"  from N = {eager} on no graph is large enough: the step is not padded, and takes "
            f"at least {LAUNCH_US:g} us for each kernel that it launches"
        )


def telling(ratio: list[float], epsilon: float) -> list[int]:
    """Return the indices of a curve to print: powers of two, both sides of each exit, the last."""
    powers = {2**step - 1 for step in range(len(ratio).bit_length())}
    edges = {
        index + offset
        for index in range(len(ratio) - 1)
        if (ratio[index] <= 1 + epsilon) != (ratio[index + 1] <= 1 + epsilon)
        for offset in (0, 1)
    }
    return sorted(powers | edges | {len(ratio) - 1})


def _modules(forecast: Forecast, index: int, epsilon: float) -> Iterator[str]:
    exits = module_exits(forecast.total, index, epsilon)
    share = forecast.curve(index).row(0, named=True)
    regimes = forecast.total.regimes[index]
    rows: list[list[object]] = [
        ["module", "share at N = 1", "regime", "own N_max", "limited by", "rule"]
    ]
    for module, row in zip(forecast.total.modules(index), exits.to_dicts(), strict=True):
        role = row["limiting_module"]
        rows.append([
            role,
            f"{share[role]:.1%}",
            regimes[module],
            amount(row["n_max"], censored=row["censored"]),
            *([NO_LIMIT, ""] if row["censored"] else [row["limiting_term"], row["evidence"]]),
        ])  # fmt: skip
    yield "N_max of each module alone, by the work model from N = 1"
    yield from columns(rows)


def _limiter(answers: pl.DataFrame) -> Iterator[str]:
    stated = answers.filter(pl.col("limiting_module").is_not_null())
    best = stated.filter(composition=SUM)
    if not best.is_empty():
        role = best["limiting_module"][0]
        yield ""
        yield f"Options that move this limit ({role}):"
        yield from (f"  {knob}" for knob in knobs(role))


def _evidence(answers: pl.DataFrame) -> Iterator[str]:
    used = answers.filter(composition=SUM).drop_nulls("constants")
    if not used.is_empty():
        row = used.row(0, named=True)
        seen = "in sample" if row["in_sample"] else "out of sample"
        yield ""
        weakest = "the weakest of the modules that have a share"
        yield f"regime {row['regime']} ({weakest}): {REGIME_MEANINGS[row['regime']]}"
        yield f"constants ({seen}), by the regime of each module:"
        yield from (f"  {constants}" for constants in row["constants"].split("; "))
        yield f"  from {', '.join(row['calibration'])}"
