"""The text of `nearfree predict`: boundaries by predictor, T(N), their evidence and constants."""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import polars as pl

from nearfree.decoders.attention_kinds import Grouped
from nearfree.decoders.modules import BETWEEN
from nearfree.derive.granularity.graphs import Step
from nearfree.derive.predict.forecast.deployment import Deployment
from nearfree.derive.predict.forecast.exits import module_exits
from nearfree.derive.predict.forecast.forecast import Forecast, knobs
from nearfree.derive.predict.forecast.total import MINIMUM, PREDICTOR, SUM
from nearfree.derive.reference.regimes import MEANINGS
from nearfree.derive.work_model.launches import LAUNCH_US
from nearfree.show.text.memory import memory_lines, shared, unfit

NOT_COUNTED = "norms, residual sums, rotary embeddings and sampling are not counted"
COUNTED = "kernels between modules and the host by an engine's constants"
_NO_FORWARD = "Choose a platform, release or format whose kernels and constants are known"
"""What to do where no T(N) of a deployment is known."""
_ON_CPU = (
    "On a CPU the forward of a GGUF file is predicted: `nearfree predict --engine llama_cpp "
    "--model FILE.gguf`; `nearfree tune llama_cpp` measures what it should draft. "
)
_LEAST_SHARE = 0.005
_NOTHING = "nothing up to there"


def no_forward(query: Deployment) -> str:
    """Return what to do where T(N) is not known, with what to ask for if its kernels are."""
    own = _ON_CPU if query.on_cpu else ""
    if query.by_file:
        own += f"By its file {query.moe} runs {query.by_file} for its experts. "
    if query.node_gpus and query.parallel.tp > query.node_gpus:
        own += f"Give --tp {query.node_gpus} at most, and share the rest by --pp or --dp. "
    known = " or ".join(query.instead)
    return own + _NO_FORWARD + (f", such as {known}" if known else "")


def columns(rows: Sequence[Sequence[object]], *, indent: int = 2, left: int = 1) -> Iterator[str]:
    """Yield rows as aligned lines: numbers to the right, the first `left` and texts to the left.

    A column is to the right where every cell below its head is a number, a dash or empty.
    """
    texts = [["" if cell is None else str(cell) for cell in row] for row in rows]
    if not texts:
        return
    widths = [max(map(len, column)) for column in zip(*texts, strict=True)]
    to_right = [
        place >= left and all(_numeric(row[place]) for row in texts[1:])
        for place in range(len(widths))
    ]
    for row in texts:
        cells = [
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(row, widths, to_right, strict=True)
        ]
        yield (" " * indent + "  ".join(cells)).rstrip()


def _numeric(text: str) -> bool:
    return not text or text[0] in "0123456789.-+[<>" or text in ("unbounded", "refused")


def title(query: Deployment) -> str:
    """Return one line that names the deployment."""
    decoder = query.decoder
    parts = [
        f"{decoder.name} on {gpus(query)}",
        formats(query),
        f"b = {query.batch}",
        f"L = {query.context}{window(query)}",
        f"attention {query.attention}",
        *([f"MoE {query.moe}{_by(query)}", f"{query.routing} routing"] if query.moe else []),
        *([f"served by {query.server}"] if query.server else []),
        *([f"dense {query.dense}"] if query.dense else []),
        *([f"CUDA graphs of {query.graphs.engine}"] if query.graphs else []),
    ]
    return ", ".join(parts)


def _by(query: Deployment) -> str:
    return f" by {query.moe_kernel}" if query.moe_kernel else ""


def gpus(query: Deployment) -> str:
    """Return the platform and, of several GPUs, how many and how they share the model."""
    return shared(query.platform, query.parallel.said)


def formats(query: Deployment) -> str:
    """Return the formats of weights, of what enters products, and of the cache."""
    (weights, activations), kv = query.main, query.formats.kv
    stored = activations if weights == activations else f"{weights} weights with {activations}"
    return stored if kv == query.formats.plain == activations else f"{stored}, {kv} cache"


def window(query: Deployment) -> str:
    """Return the windows and chunks that are shorter than the context, and how many layers have."""
    kinds = query.decoder.attention
    near = [k for k in kinds if isinstance(k, Grouped) and k.most and k.most < query.context]
    if len(kinds) == 1:
        return f" ({near[0].words})" if near else ""
    layers = [
        f"{each.words} in {len(each.layers)} of {query.decoder.layers} layers" for each in near
    ]
    return f" ({', '.join(layers)})" if near else ""


def report(
    forecast: Forecast, place: int, epsilon: float, accepted: float | None = None
) -> Iterator[str]:
    """Yield the answer about one deployment of a forecast, as lines.

    Parameters
    ----------
    accepted
        Tokens that a forward yields, as measured; then accepted / N_max is printed, too.
    """
    query = forecast.deployments[place]
    lines = list(memory_lines(query.memory, query.platform))
    yield from (*lines, title(query)) if unfit(query.memory) else (title(query), *lines)
    answers = forecast.answers.filter(deployment=place)
    for baseline in answers["baseline"].unique(maintain_order=True):
        yield ""
        rows = answers.filter(baseline=baseline)
        yield from _boundaries(forecast, rows, epsilon, accepted)
    refusal = forecast.total.refusals[place]
    if refusal is not None:
        yield ""
        yield f"Its T(N) is not predicted: {refusal}. {no_forward(query)}"
    else:
        yield ""
        yield from _curve(forecast, place, epsilon)
        yield ""
        yield from _modules(forecast, place, epsilon)
        yield from _limiter(answers)
        yield from _behind(answers)
        yield from (f"of T(N): {each}" for each in query.caveats)


ROUNDING, BELOW_10 = 1e-12, 9.99
"""What a product of few factors may be off by its rounding, relative, and the last number with two
decimals below 10."""


def amount(value: float | None, *, censored: bool = False) -> str:
    """Return a boundary as it is printed: unbounded, at least the grid's end, or a number.

    From 10 on it is whole positions, rounded down: T of one more is beyond the tolerance.
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
    """Return an interval as it is printed; empty without one.

    Parameters
    ----------
    row
        An answer.
    end
        The largest N that was looked at: an end there may be larger.
    """
    if row["low"] is None:
        return ""
    low, high = (f">= {n:g}" if n == end else f"{n:g}" for n in (row["low"], row["high"]))
    return f"[{low}, {high}]"


def _boundaries(
    forecast: Forecast, answers: pl.DataFrame, epsilon: float, accepted: float | None
) -> Iterator[str]:
    baseline, end = answers["baseline"][0], float(forecast.total.grid[-1])
    about = "" if baseline == 1 else ", where balanced routing has woken every expert"
    yield (
        f"N_max, the largest N with T(N) <= {1 + epsilon:g} T({baseline}), "
        f"from N = {baseline}{about}"
    )
    used = [] if accepted is None else ["accepted / N_max"]
    rows: list[list[object]] = [["predictor", "N_max", "interval", *used, "limited by", "rule"]]
    rows += [_boundary(row, end, accepted) for row in answers.to_dicts()]
    yield from columns(rows)


def _boundary(row: dict[str, Any], end: float, accepted: float | None) -> list[object]:
    name = row["predictor"]
    if name == PREDICTOR and row["composition"] == MINIMUM:
        name = f"{name}, least of modules"
    most = "<= " if row["censored"] else ""
    used = [] if accepted is None else [f"{most}{accepted / (row['n_max'] or math.inf):.2f}"]
    if row["refusal"]:
        return [name, "refused", "", *(["-"] if used else []), "", row["refusal"]]
    wider = row["n_max_extended"]
    more = (
        f" (with b, heads and gates: {amount(wider)}, {row['limiting_module_extended']})"
        if wider is not None and amount(wider) != amount(row["n_max"])
        else ""
    )
    value = amount(row["n_max"], censored=row["censored"])
    if row["n_max"] < row["baseline"]:
        value = f"{value} < {row['baseline']}"
    if row["censored"]:
        return [name, value, interval(row, end), *used, _NOTHING + more, ""]
    limited = (
        "nothing"
        if row["n_max"] == math.inf
        else f"{row['limiting_module']}: {row['limiting_term']}"
    )
    return [name, value, interval(row, end), *used, limited + more, row["evidence"]]


def _curve(forecast: Forecast, place: int, epsilon: float) -> Iterator[str]:
    curve = forecast.curve(place)
    base = forecast.total.model_us[place, 0]
    low, high = (forecast.total.moved_us(way)[place] / base for way in (-1.0, 1.0))
    roles = [name for name in curve.columns[3:] if curve[name].max() >= _LEAST_SHARE]  # type: ignore[operator]
    chosen = telling(curve["ratio"].to_list(), epsilon)
    padding = forecast.total.padding
    steps = padding.steps[place] if padding else []
    head = ["rows", "run as"] if steps else []
    rows: list[list[object]] = [["N", "T(N)/T(1)", "interval", "us", *head, *roles]]
    for number in chosen:
        row = curve.row(number, named=True)
        interval = f"{low[number]:.2f} to {high[number]:.2f}" if number else ""
        shares = [f"{row[name]:.0%}" for name in roles]
        ran = [steps[number].tokens, steps[number].rows] if steps else []
        times = [f"{row['ratio']:.3f}", interval, f"{row['latency_us']:.0f}"]
        rows.append([row["n"], *times, *ran, *shares])
    counted = BETWEEN in forecast.total.roles[place].values()
    besides = COUNTED if counted else NOT_COUNTED
    yield f"T(N) by the work model, and each module's share of it ({besides})"
    yield from columns(rows, left=0)
    if steps:
        yield from _steps(forecast.deployments[place], steps, curve["n"].to_list())


def _steps(query: Deployment, steps: Sequence[Step], grid: Sequence[int]) -> Iterator[str]:
    """Yield what a step runs in: which graphs, what says their sizes, and from where on in none."""
    if query.graphs is None:
        return
    sized = next((step for step in reversed(steps) if step.size is not None), steps[0])
    yield (
        f"  rows: tokens of a rank's step, which runs as the next captured number of "
        f"{query.graphs.counts} ({sized.evidence})"
    )
    eager = next((n for n, step in zip(grid, steps, strict=True) if step.size is None), None)
    if eager is not None:
        yield (
            f"  from N = {eager} on no graph is large enough: such a step is not padded, and takes "
            f"at least {LAUNCH_US:g} us for each kernel that it launches"
        )


def telling(ratio: list[float], epsilon: float) -> list[int]:
    """Return the places of a curve to print: powers of two, both sides of exits, the last."""
    powers = {2**step - 1 for step in range(len(ratio).bit_length())}
    sides = {
        place + side
        for place in range(len(ratio) - 1)
        if (ratio[place] <= 1 + epsilon) != (ratio[place + 1] <= 1 + epsilon)
        for side in (0, 1)
    }
    return sorted(powers | sides | {len(ratio) - 1})


def _modules(forecast: Forecast, place: int, epsilon: float) -> Iterator[str]:
    alone = module_exits(forecast.total, place, epsilon)
    share = forecast.curve(place).row(0, named=True)
    regimes = forecast.total.regimes[place]
    rows: list[list[object]] = [
        ["module", "share at N=1", "regime", "N_max alone", "limited by", "rule"]
    ]
    for at, row in zip(forecast.total.modules(place), alone.to_dicts(), strict=True):
        role = row["limiting_module"]
        rows.append([
            role,
            f"{share[role]:.1%}",
            regimes[at],
            amount(row["n_max"], censored=row["censored"]),
            *([_NOTHING, ""] if row["censored"] else [row["limiting_term"], row["evidence"]]),
        ])  # fmt: skip
    yield "Modules by themselves, by the work model from N = 1"
    yield from columns(rows)


def _limiter(answers: pl.DataFrame) -> Iterator[str]:
    stated = answers.filter(pl.col("limiting_module").is_not_null())
    best = stated.filter(composition=SUM)
    if not best.is_empty():
        role = best["limiting_module"][0]
        yield ""
        yield f"To move it, where {role} limits:"
        yield from (f"  {knob}" for knob in knobs(role))


def _behind(answers: pl.DataFrame) -> Iterator[str]:
    used = answers.filter(composition=SUM).drop_nulls("constants")
    if not used.is_empty():
        row = used.row(0, named=True)
        seen = "in sample" if row["in_sample"] else "out of sample"
        yield ""
        weakest = "that of the weakest module with a share"
        yield f"regime {row['regime']} ({weakest}): {MEANINGS[row['regime']]}"
        yield f"constants ({seen}), by the regime of each module:"
        yield from (f"  {each}" for each in row["constants"].split("; "))
        yield f"  from {', '.join(row['calibration'])}"
