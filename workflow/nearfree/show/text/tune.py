"""The answer of `nearfree tune` as text."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from nearfree.core.drafting import Drafting
from nearfree.core.plan import DecodePlan
from nearfree.derive.tune.curve import EngineCurve
from nearfree.derive.tune.interval import Interval
from nearfree.derive.tune.recorded import Answer, OverDefault, RecordedProof, Setting
from nearfree.show.text.engine import handover_text
from nearfree.show.text.forecast import columns
from nearfree.show.text.tune_json import (
    choices_by_kind,
    loaded_engine,
    paste_line,
    predicted_choice,
)
from nearfree.units import US_PER_MS

NOT_SPECULATING = {
    "none": "do not speculate: nothing beat none by more than the noise",
    "undecided": "undecided: a setting was faster than none, but not by more than the noise",
}
"""The explanation of each verdict against speculation."""
_DRIFT = 0.15
"""The least relative change of forwards' times between T(N) and the proof that the text tells."""


def tune_text(record: RecordedProof, model: Path, draft: Path | None) -> Iterator[str]:
    """Yield T(N), the proof runs, the choice by kind of prompt, the verdict, and the command."""
    answer, takes = record.answer, record.takes
    loaded = loaded_engine(takes)
    yield (
        f"{loaded.model} ({loaded.file_type}) in {loaded.engine} {loaded.release}; "
        f"drafts run by: {answer.loop}{_conditions(record.plan)}"
    )
    yield ""
    yield from _curve(answer)
    yield ""
    yield from _proof(answer)
    yield from (f"  {line}" for line in handover_text(takes))
    yield ""
    if kinds := sorted({kind for setting in answer.settings for kind in setting.kinds}):
        yield from _kinds(answer, kinds)
        yield ""
    yield from _choice(record)
    yield ""
    if record.kinds:
        yield from _by_kind(record)
        yield ""
    yield from _verdict(answer)
    yield ""
    yield "to run:"
    yield f"  {paste_line(record, answer.run, model, draft)}"
    for kind, result in record.kinds.items():
        if result.run != answer.run:
            yield f"to run where all prompts are {kind}:"
            yield f"  {paste_line(record, result.run, model, draft)}"
    yield ""
    yield "evidence: " + ", ".join(str(take.name) for take in takes)


def _conditions(plan: DecodePlan) -> str:
    """Return the batch size and the temperature of a plan, each where it is not the default."""
    text = ""
    if plan.batch > 1:
        text += f"; {plan.batch} prompts at once, one call per step for all of them"
    if plan.temperature:
        text += f"; sampled at temperature {plan.temperature:g}, with one random number per token"
    return text


def _curve(answer: Answer) -> Iterator[str]:
    curve = answer.curve
    setting = curve.setting
    cache = f", computed and cached in {setting.kv_dtype}" if setting.kv_dtype else ""
    yield (
        f"T(N) in {curve.timer} time, {setting.threads} thread(s), "
        f"{'' if setting.repack else 'not '}repacked{cache}, over L = {setting.context}"
        f"{_rows(curve)}:"
    )
    t1_us = curve.t_us[0]
    rows = [["N", "T(N), ms", "95 %", "T(N)/T(1)", "T(N)/N T(1)"]]
    for n, us, low, high in zip(curve.n, curve.t_us, curve.low_us, curve.high_us, strict=True):
        rows.append(
            [
                str(n),
                f"{us / US_PER_MS:.2f}",
                f"[{low / US_PER_MS:.2f}, {high / US_PER_MS:.2f}]",
                f"{us / t1_us:.2f}",
                f"{us / t1_us / n:.2f}",
            ]
        )
    yield from columns(rows)


def _rows(curve: EngineCurve) -> str:
    batch = curve.setting.batch
    return f", N rows of each of {batch} sequences" if batch > 1 else ""


def _proof(answer: Answer) -> Iterator[str]:
    yield (
        f"run in alternation on {answer.prompts} held-out prompts, {answer.repeats} times, "
        f"tokens/s of {answer.seconds} time:"
    )
    head = "K|drafter|threads|repacked|predicted|tokens/s|95 %|x none|identical|steps as replayed"
    rows = [head.split("|")]
    for setting in _by_k(answer):
        run, drafting = setting.result, setting.result.drafting
        rows.append(
            [
                str(drafting.k),
                drafting.label,
                str(drafting.threads),
                "yes" if drafting.repack else "no",
                f"{setting.predicted_tokens_s:.1f}",
                f"{run.tokens_s.value:.1f}",
                _ends(run.tokens_s, 1),
                f"{setting.gain.value:.2f}",
                f"{run.identical:.0%}",
                {True: "yes", False: "no", None: "unknown"}[run.steps_equal],
            ]
        )
    yield from columns(rows)
    yield from _differences(answer)
    yield from _drift(answer)


def _differences(answer: Answer) -> Iterator[str]:
    """Yield where outputs first differ from those of none, once for settings that differ alike."""
    by_place: dict[tuple[int, float | None], list[str]] = {}
    for setting in _by_k(answer):
        run = setting.result
        if run.first_difference is not None:
            place = (run.first_difference, run.margin)
            by_place.setdefault(place, []).append(f"K = {run.drafting.k}, {run.drafting.label}")
    for (tokens, margin), names in by_place.items():
        lead = "" if margin is None else f", where the best logit led by {margin:.3f}"
        yield (
            f"  {'; '.join(names)}: outputs differ from none after {tokens} "
            f"tokens at the earliest{lead}"
        )


def _drift(answer: Answer) -> Iterator[str]:
    """Yield by how much forwards of the proof took longer or shorter than T(N) says.

    Only runs in the replayed steps tell: those of others took other forwards.
    """
    slower = [
        setting.predicted_tokens_s / setting.result.tokens_s.value
        for setting in answer.settings
        if setting.result.steps_equal and setting.result.tokens_s.value
    ]
    least, most = min(slower, default=1.0), max(slower, default=1.0)
    if most > 1 + _DRIFT or least < 1 / (1 + _DRIFT):
        yield (
            f"  in the steps that were replayed, forwards took {least:.2f} to {most:.2f} times as "
            "long as when T(N) was measured: other work on this machine, or another clock rate; "
            "gains are as measured, predictions of settings that did not run are off as much"
        )


def _kinds(answer: Answer, kinds: Sequence[str]) -> Iterator[str]:
    """Yield the speedup of each drafting setting on each kind of prompts."""
    yield "speedup over none, by kind of prompt:"
    rows = [["K", "drafter", *(word for kind in kinds for word in (kind, "95 %"))]]
    for setting in _by_k(answer):
        drafting = setting.result.drafting
        if drafting.drafter == "none":
            continue
        cells = [cell for kind in kinds for cell in _gain_cells(setting.kinds.get(kind))]
        rows.append([str(drafting.k), drafting.label, *cells])
    yield from columns(rows)


def _by_k(answer: Answer) -> list[Setting]:
    return sorted(answer.settings, key=lambda setting: setting.result.drafting.k)


def _gain_cells(gain: Interval | None) -> tuple[str, str]:
    """Return a speedup and its interval as two cells, a dash where it is unknown."""
    return ("-", "") if gain is None else (f"{gain.value:.2f}", _ends(gain, 2))


def _ends(interval: Interval, digits: int) -> str:
    if interval.high == float("inf"):
        return "unknown: one repeat"
    return f"[{interval.low:.{digits}f}, {interval.high:.{digits}f}]"


def _choice(record: RecordedProof) -> Iterator[str]:
    """Yield the predicted choice for each kind of prompts, replayed on the tuning prompts."""
    yield "predicted choice, on the tuning prompts:"
    rows = [["prompts", "K", "drafter", "threads", "tokens/s", "x none", "cut to edges, x none"]]
    for kind, choice in choices_by_kind(record):
        row = predicted_choice(kind, choice)
        cut = row["cut_over_none"]
        rows.append(
            [
                *(str(row[name]) for name in ("prompts", "k", "drafter", "threads")),
                f"{row['tokens_s']:.1f}",
                f"{row['over_none']:.2f}",
                f"{cut:.2f}" if cut else "-",
            ]
        )
    yield from columns(rows)


def _by_kind(record: RecordedProof) -> Iterator[str]:
    """Yield the choice for each kind of prompts alone, and its speedup on the held-out prompts."""
    yield "choice for each kind of prompt alone, on its held-out prompts, and the copied share:"
    rows = [["prompts", "K", "drafter", "x none", "95 %", "copied, tuning", "copied, held out"]]
    for kind, result in record.kinds.items():
        drafting = result.choice.chosen.drafting
        shares = (result.copied_tuned, result.copied_held_out)
        copied = ("-" if share is None else f"{share:.0%}" for share in shares)
        gain = _gain_cells(result.gain)
        rows.append([kind, str(drafting.k), drafting.label, *gain, *copied])
    yield from columns(rows)
    yield "  copied: the share of an output's tokens that follow from the three tokens before them"


def _verdict(answer: Answer) -> Iterator[str]:
    if answer.verdict != "speculate":
        yield f"verdict: {NOT_SPECULATING[answer.verdict]}"
    else:
        run = answer.run
        yield f"verdict: speculate, with {run.label} and K = {run.k}"
    for name, interval in (
        ("none", answer.over_none),
        ("the engine's default", answer.over_default),
    ):
        if interval is not None:
            yield f"  {interval.value:.2f} times as fast as {name}, {_ends(interval, 2)}"
    for over in answer.over_defaults:
        yield from _beside_default(over, answer.run)


def _beside_default(over: OverDefault, run: Drafting) -> Iterator[str]:
    """Yield the comparison of the chosen setting with one drafter type's default."""
    name = f"{over.drafting.label} with K = {over.drafting.k}, a default"
    if over.gain is not None:
        text = f"{over.gain.value:.2f} times as fast as {name}, {_ends(over.gain, 2)}"
    else:
        text = f"it is {name}" if over.ran == run and over.drafts else name
    if not over.drafts:
        text += ": drafts nothing on these prompts"
    elif over.ran is not None and over.ran != over.drafting:
        text += f": takes the same steps as {over.ran.label} with K = {over.ran.k}"
    yield f"  {text}"
