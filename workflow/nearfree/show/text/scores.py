"""Scores of predictors as text: data, truth and constants, and one line per group.

Of curves in general, of regimes, and of collectives; and the steps of engines that are unexplained.
"""

from collections.abc import Iterator, Mapping, Sequence

import polars as pl

from nearfree.derive.score.engine_steps import TOLERATED, CurveSteps, UnnamedStep
from nearfree.derive.score.evaluation import Evaluation
from nearfree.derive.score.narrowing import calibrated_on
from nearfree.derive.truth.truth import Truth
from nearfree.log.events import Event
from nearfree.show.text.forecast import columns

Row = dict[str, object]
TRUTH = (
    "last pass over the grid N from the baseline (smallest N; balanced routing: smallest N >= "
    "ceil(E / (b k)); power law: smallest N with nine in ten experts active)"
)
HIT = "N_max <= prediction < next grid N; refused and undecided settings count as misses"
FORMS_SEEN = (
    "forms: chosen on A100, H100 and the paper's printed H20 tables, after a feasibility study "
    "that tried forms on the tables of all nine GPUs; other platforms are out of sample for "
    "constants, not for forms"
)
_COUNTS = {"settings": "settings", "answered": "answered", "refused": "refused",
           "undecided": "undecided", "hits": "hits"}  # fmt: skip
_AMOUNTS = {"hit_share": "hit", "within_1_31": "x1.31", "within_2": "x2",
            "median_abs_log2": "|log2|", "t_ratio_error": "T err", "interval_coverage": "covered",
            "interval_width": "width"}  # fmt: skip
_LEGEND = (
    "hit, x1.31, x2: shares of all settings",
    "first exit: hits where truth is the last N before the first violation",
    "|log2|: median doublings to the interval [N_max, next N), of answered settings",
    "T err: median error of T(N) / T(baseline), baseline < N <= 4 N_max",
    "covered: share of stated intervals that meet [N_max, next N); width: median high / low",
)


def head(
    source: str, known: Truth, evaluation: Evaluation, epsilons: Sequence[float]
) -> Iterator[str]:
    """Yield the lines above the scores: data, tolerances, truth, constants and coverage."""
    answered, total = evaluation.scores["answered"].sum(), evaluation.scores.height
    undecided = known.boundaries["undecided"].sum()
    yield f"data        {source}"
    yield f"tolerance   {', '.join(f'{epsilon:g}' for epsilon in epsilons)}"
    yield f"truth       {TRUTH}"
    yield f"hit         {HIT}"
    for predictor, texts in evaluation.constants.items():
        for text in texts:
            yield f"calibrated  {predictor}: {text}"
    if not evaluation.constants:
        yield "calibrated  nothing: no answer uses a calibrated constant"
    yield f"coverage    {answered} of {total} answered; {undecided} boundaries undecided"
    reasons = known.excluded.group_by("reason", maintain_order=True).agg(
        pl.len().alias("curves"), pl.col("event_id").first()
    )
    for row in reasons.to_dicts():
        yield f"excluded    {row['curves']} curves: {row['reason']} (first: {row['event_id']})"


def answered_as_predicted(evaluation: Evaluation) -> Iterator[str]:
    """Yield what answers a file's curves, and how many of them the log has itself."""
    yield "answers     as `predict` gives them: by public curves that know the kernel (regime)"
    yield (
        f"on record   {evaluation.on_record} curves whose shape the log has of their own release: "
        "scores of those are no test"
    )


def basis(constants: Mapping[str, Event], *, every_form: bool) -> Iterator[str]:
    """Yield the data that constants and forms of T(N) were chosen on, and the candidate forms.

    Parameters
    ----------
    every_form
        Whether to print each candidate form, or only their number.
    """
    if not constants:
        yield "seen        no constants are in the log"
        return
    names = ", ".join(calibrated_on(constants))
    yield f"seen        constants: {names} alone; {FORMS_SEEN}"
    for name, event in constants.items():
        forms = event.data.tried
        more = "" if every_form else " (--tried prints them)"
        yield f"tried       {name}: {len(forms)} forms on {event.data.curves} curves{more}"
        if every_form:
            yield from (f"            - {form}" for form in forms)


def table(rows: Sequence[Row], by: Sequence[str]) -> Iterator[str]:
    """Yield scores as aligned lines, with a heading and a legend."""
    cells = [_score(row, by) for row in rows]
    lines = [list(cells[0]), *(list(score.values()) for score in cells)]
    yield from columns(lines, indent=0, left=len(by))
    yield ""
    yield from _LEGEND


def _score(row: Row, by: Sequence[str]) -> dict[str, str]:
    """Return a row's cells by column heading."""
    return {
        **{key: _text(row[key]) for key in by},
        **{name: _text(row[key]) for key, name in _COUNTS.items()},
        "first exit": _text(row["hits_first_exit"]),
        **{name: _share(row[key]) for key, name in _AMOUNTS.items()},
    }


def _text(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return "-" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


def _share(value: object) -> str:
    return "-" if value is None else f"{value:.3f}"


LEFT_OUT = {
    "R0": "a GPU and its siblings",
    "R1": "a GPU",
    "R2m": "a model, everywhere: d_model, experts and top_k; of products K, of attention its "
    "heads, of attention layers d_model with a rank's heads",
    "R2s": "a shape, everywhere",
    "R3": "a release, of kernels measured in another one",
}
"""The curves that each regime leaves out."""


def regime_lines(
    source: str, known: Truth, epsilons: Sequence[float], rows: Sequence[Row], by: Sequence[str]
) -> Iterator[str]:
    """Yield the definitions of the regimes' scores, and one line per group of `by`."""
    yield f"data        {source}: {known.settings.height} curves"
    yield f"tolerance   {', '.join(f'{epsilon:g}' for epsilon in epsilons)}"
    yield f"truth       {TRUTH}"
    yield f"hit         {HIT}"
    for name, text in LEFT_OUT.items():
        yield f"{name:11} leaves out {text}"
    yield "bands       calibrated on one half of the models, scored on the other"
    yield "forms       chosen on these same tables (docs/history.md, Regimes)"
    yield ""
    yield from table(rows, by)


def collective_lines(source: str, rows: pl.DataFrame, by: Sequence[str]) -> Iterator[str]:
    """Yield the definitions of the error of collectives' T, and one line per group of `by`."""
    from nearfree.derive.score.collectives import LEAST_KIB, MOST_MIB

    yield f"data        {source}"
    yield "predicted   T(N) by constants fitted on every platform but the point's own"
    yield "error       |predicted / measured - 1| of T: its median, and its 90th percentile (90 %)"
    yield (
        f"points      payloads of {LEAST_KIB} KiB to {MOST_MIB} MiB; dispatch and combine: every "
        "number of tokens"
    )
    yield "siblings    GPUs of the same generation stay in the fit; only the A100 has none"
    yield ""
    names = [*by, "platforms", "points"]
    cells = [
        [*(row[name] for name in names), f"{row['median_error']:.3f}", f"{row['error_90']:.3f}"]
        for row in rows.iter_rows(named=True)
    ]
    yield from columns([[*(name.replace("_", " ") for name in names), "median", "90 %"], *cells])


def steps_lines(curves: Sequence[CurveSteps]) -> Iterator[str]:
    """Yield one line per engine curve with its unexplained steps; nothing without curves."""
    if not curves:
        return
    steps = [step for curve in curves for step in curve.steps]
    certain = sum(step.sure for step in steps)
    yield ""
    yield (
        f"unexplained steps of engines' curves: {len(steps)} N at which T(N)/T(1) rises by "
        f"{TOLERATED:g} more than the work model's and no source rule names a step; {certain} of "
        "them at the lower end of the interval, too"
    )
    for curve in curves:
        seen = " (in sample)" if curve.in_sample else ""
        yield f"  {curve.curve}{seen}: {', '.join(map(_step, curve.steps)) or 'none'}"


def _step(step: UnnamedStep) -> str:
    perhaps = "" if step.sure else " (within its interval)"
    return f"N = {step.n} from {step.since} by {step.excess:.2f}{perhaps}"
