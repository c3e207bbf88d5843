"""The answer of `nearfree tune`, as text and as JSON."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from nearfree.core.drafting import Drafting
from nearfree.core.plan import DecodePlan
from nearfree.derive.tune.answer import Answer, OfKind, OverDefault, Setting
from nearfree.derive.tune.choice import Choice
from nearfree.derive.tune.curve import EngineCurve
from nearfree.derive.tune.interval import Interval
from nearfree.derive.tune.recorded import Recorded
from nearfree.log.events import EngineLoaded
from nearfree.log.evidence import Take
from nearfree.show.text.forecast import columns
from nearfree.show.text.tune_line import paste
from nearfree.units import US_PER_MS

SCHEMA = 1
NOT = {
    "none": "do not speculate: nothing beat none by more than the noise",
    "undecided": "undecided: a setting was faster than none, but not by more than the noise",
}
"""The verdicts that are not to speculate, in words."""


def document(said: Recorded, model: Path, draft: Path | None) -> Any:
    """Return the answer as plain data for JSON; its keys are part of the command's contract."""
    answer, takes = said.answer, said.takes
    loaded = _loaded(takes)
    curve = answer.curve
    points = zip(curve.n, curve.t_us, curve.low_us, curve.high_us, strict=True)
    return {
        "schema": SCHEMA,
        "engine": {
            "name": loaded.engine,
            "release": loaded.release,
            "library_sha256": loaded.library_sha256,
            "system_info": loaded.system_info,
        },
        "model": {"sha256": loaded.weights_sha256, "type": loaded.file_type},
        "curve": [{"n": n, "t_us": us, "low": low, "high": high} for n, us, low, high in points],
        "curve_of": {
            "threads": curve.setting.threads,
            "repack": curve.setting.repack,
            "context": curve.setting.context,
            "batch": curve.setting.batch,
            "seconds": curve.timer,
        },
        "settings": [_setting(each) for each in answer.settings],
        "predicted": [_predicted(kind, best) for kind, best in _best(said)],
        "by_kind": {kind: _of_kind(said, of, model, draft) for kind, of in said.kinds.items()},
        "choice": _plain(answer.run),
        "gain": {
            "over_none": _interval(answer.over_none),
            "over_default": _interval(answer.over_default),
            "over_defaults": [_over_default(each) for each in answer.over_defaults],
        },
        "verdict": answer.verdict,
        "held_out": {
            "prompts": answer.prompts,
            "repeats": answer.repeats,
            "seconds": answer.seconds,
            "loop": answer.loop,
            "temperature": said.plan.temperature,
            "batch": said.plan.batch,
            "over_none": [_over_none(each) for each in answer.settings],
        },
        "paste": _paste(said, answer.run, model, draft),
        "events": [str(take.name) for take in takes],
    }


def _plain(drafting: Drafting) -> dict[str, Any]:
    return {
        "k": drafting.k,
        "drafter": drafting.label,
        "threads": drafting.threads,
        "repack": drafting.repack,
    }


def _setting(setting: Setting) -> dict[str, Any]:
    ran = setting.proven
    return {
        **_plain(ran.drafting),
        "predicted_tokens_s": setting.predicted_tokens_s,
        "tokens_s": _interval(ran.tokens_s),
        "identical_share": ran.identical,
        "steps_equal": ran.steps_equal,
        "exact": ran.exact,
        "first_difference": ran.first_difference,
        "margin": ran.margin,
    }


def _best(said: Recorded) -> list[tuple[str, Choice]]:
    """Return what is predicted best of each kind of prompts that are tuned on, and of all."""
    return [*((kind, each.choice) for kind, each in said.kinds.items()), ("all", said.choice)]


def _predicted(kind: str, best: Choice) -> dict[str, Any]:
    none = best.none.tokens_s
    return {
        "prompts": kind,
        **_plain(best.chosen.drafting),
        "tokens_s": best.chosen.tokens_s,
        "over_none": best.chosen.tokens_s / none,
        "cut_over_none": best.cut and best.cut.tokens_s / none,
    }


def _of_kind(said: Recorded, of: OfKind, model: Path, draft: Path | None) -> dict[str, Any]:
    best = of.choice
    return {
        "choice": _plain(best.chosen.drafting),
        "predicted_over_none": best.chosen.tokens_s / best.none.tokens_s,
        "over_none": _interval(of.gain),
        "run": _plain(of.run),
        "paste": _paste(said, of.run, model, draft),
        "copied_share": {"tuned": of.copied_tuned, "held_out": of.copied_held_out},
    }


def _over_none(setting: Setting) -> dict[str, Any]:
    return {
        **_plain(setting.proven.drafting),
        "all": _interval(setting.gain),
        "kinds": {kind: _interval(over) for kind, over in setting.kinds.items()},
    }


def _over_default(over: OverDefault) -> dict[str, Any]:
    return {
        **_plain(over.drafting),
        "drafts": over.drafts,
        "ran_as": None if over.ran is None else _plain(over.ran),
        "over": _interval(over.gain),
    }


def _interval(interval: Interval | None) -> dict[str, float | None] | None:
    """Return an interval; an end that nothing is known of is null, since JSON has no infinity."""
    if interval is None:
        return None
    known = interval.high != float("inf")
    return {
        "value": interval.value,
        "low": interval.low if known else None,
        "high": interval.high if known else None,
    }


def _loaded(takes: Sequence[Take]) -> EngineLoaded:
    found: EngineLoaded = next(e.data for take in takes for e in take.of(EngineLoaded))
    return found


def _paste(said: Recorded, run: Drafting, model: Path, draft: Path | None) -> str:
    plan = said.plan
    return paste(
        plan.engine,
        run,
        model,
        draft,
        plan.temperature,
        batch=plan.batch,
        positions=plan.positions,
    )


def tune_text(said: Recorded, model: Path, draft: Path | None) -> Iterator[str]:
    """Yield the answer: T(N), what ran, the choice by kind of prompt, the verdict, what to run."""
    answer, takes = said.answer, said.takes
    loaded = _loaded(takes)
    yield (
        f"{loaded.model} ({loaded.file_type}) in {loaded.engine} {loaded.release}; "
        f"drafts run by: {answer.loop}{_asked(said.plan)}"
    )
    yield ""
    yield from _curve(answer)
    yield ""
    yield from _proof(answer)
    yield ""
    if kinds := sorted({kind for each in answer.settings for kind in each.kinds}):
        yield from _kinds(answer, kinds)
        yield ""
    yield from _choice(said)
    yield ""
    if said.kinds:
        yield from _by_kind(said)
        yield ""
    yield from _verdict(answer)
    yield ""
    yield "to run:"
    yield f"  {_paste(said, answer.run, model, draft)}"
    for kind, of in said.kinds.items():
        if of.run != answer.run:
            yield f"to run where all prompts are {kind}:"
            yield f"  {_paste(said, of.run, model, draft)}"
    yield ""
    yield "evidence: " + ", ".join(str(take.name) for take in takes)


def _asked(plan: DecodePlan) -> str:
    heat, batch = plan.temperature, plan.batch
    many = f"; {batch} prompts at once, each step one call over all of them" if batch > 1 else ""
    hot = f"; sampled at temperature {heat:g}, each token by a number of its own" if heat else ""
    return many + hot


def _curve(answer: Answer) -> Iterator[str]:
    curve = answer.curve
    setting = curve.setting
    yield (
        f"T(N) in {curve.timer} time, {setting.threads} thread(s), "
        f"{'' if setting.repack else 'not '}repacked, over L = {setting.context}{_of(curve)}:"
    )
    first = curve.t_us[0]
    rows = [["N", "T(N), ms", "95 %", "T(N)/T(1)", "T(N)/N T(1)"]]
    for n, us, low, high in zip(curve.n, curve.t_us, curve.low_us, curve.high_us, strict=True):
        rows.append(
            [
                str(n),
                f"{us / US_PER_MS:.2f}",
                f"[{low / US_PER_MS:.2f}, {high / US_PER_MS:.2f}]",
                f"{us / first:.2f}",
                f"{us / first / n:.2f}",
            ]
        )
    yield from columns(rows)


def _of(curve: EngineCurve) -> str:
    many = curve.setting.batch
    return f", N rows of each of {many} sequences" if many > 1 else ""


def _proof(answer: Answer) -> Iterator[str]:
    yield (
        f"run in turn on {answer.prompts} held-out prompts, {answer.repeats} times, "
        f"tokens/s of {answer.seconds} time:"
    )
    head = "K|drafter|threads|repacked|predicted|tokens/s|95 %|x none|identical|steps as replayed"
    rows = [head.split("|")]
    for setting in sorted(answer.settings, key=lambda each: each.proven.drafting.k):
        ran, drafting = setting.proven, setting.proven.drafting
        rows.append(
            [
                str(drafting.k),
                drafting.label,
                str(drafting.threads),
                "yes" if drafting.repack else "no",
                f"{setting.predicted_tokens_s:.1f}",
                f"{ran.tokens_s.value:.1f}",
                _ends(ran.tokens_s, 1),
                f"{setting.gain.value:.2f}",
                f"{ran.identical:.0%}",
                {True: "yes", False: "no", None: "not told"}[ran.steps_equal],
            ]
        )
    yield from columns(rows)
    for setting in answer.settings:
        ran = setting.proven
        if ran.first_difference is not None:
            margin = "" if ran.margin is None else f", where the best logit led by {ran.margin:.3f}"
            yield (
                f"  K = {ran.drafting.k}, {ran.drafting.label}: outputs differ from none after "
                f"{ran.first_difference} tokens at the earliest{margin}"
            )


def _kinds(answer: Answer, kinds: Sequence[str]) -> Iterator[str]:
    """Yield what each setting that drafts won on each kind of prompts."""
    yield "the same by kind of prompt, times as fast as none:"
    rows = [["K", "drafter", *(word for kind in kinds for word in (kind, "95 %"))]]
    for setting in sorted(answer.settings, key=lambda each: each.proven.drafting.k):
        drafting = setting.proven.drafting
        if drafting.drafter == "none":
            continue
        won = [setting.kinds.get(kind) for kind in kinds]
        words = [
            word
            for each in won
            for word in (("-", "") if each is None else (f"{each.value:.2f}", _ends(each, 2)))
        ]
        rows.append([str(drafting.k), drafting.label, *words])
    yield from columns(rows)


def _ends(interval: Interval, digits: int) -> str:
    if interval.high == float("inf"):
        return "unknown: one repeat"
    return f"[{interval.low:.{digits}f}, {interval.high:.{digits}f}]"


def _choice(said: Recorded) -> Iterator[str]:
    """Yield what is predicted best of each kind of prompts, on those that are tuned on."""
    yield "predicted best, on the prompts that are tuned on:"
    rows = [["prompts", "K", "drafter", "threads", "tokens/s", "x none", "cut to edges, x none"]]
    for kind, best in _best(said):
        each = _predicted(kind, best)
        cut = each["cut_over_none"]
        rows.append(
            [
                *(str(each[name]) for name in ("prompts", "k", "drafter", "threads")),
                f"{each['tokens_s']:.1f}",
                f"{each['over_none']:.2f}",
                f"{cut:.2f}" if cut else "-",
            ]
        )
    yield from columns(rows)


def _by_kind(said: Recorded) -> Iterator[str]:
    """Yield what each kind of prompts chooses apart, and what that won on those held out."""
    yield "the choice of each kind apart, on its prompts that are held out, and what it copies:"
    rows = [["prompts", "K", "drafter", "x none", "95 %", "copied, tuned on", "copied, held out"]]
    for kind, of in said.kinds.items():
        chosen = of.choice.chosen.drafting
        won = ("-", "") if of.gain is None else (f"{of.gain.value:.2f}", _ends(of.gain, 2))
        copied = ("-" if c is None else f"{c:.0%}" for c in (of.copied_tuned, of.copied_held_out))
        rows.append([kind, str(chosen.k), chosen.label, *won, *copied])
    yield from columns(rows)
    yield "  copied: the share of an output's tokens that the three before them foretell"


def _verdict(answer: Answer) -> Iterator[str]:
    if answer.verdict != "speculate":
        yield f"verdict: {NOT[answer.verdict]}"
    else:
        run = answer.run
        yield f"verdict: speculate, with {run.label} and K = {run.k}"
    for name, interval in (
        ("none", answer.over_none),
        ("the engine's default", answer.over_default),
    ):
        if interval is not None:
            yield f"  {interval.value:.2f} times as fast as {name}, {_ends(interval, 2)}"
    for each in answer.over_defaults:
        yield from _beside(each, answer.run)


def _beside(each: OverDefault, run: Drafting) -> Iterator[str]:
    """Yield what is run beside one type's default."""
    name = f"{each.drafting.label} with K = {each.drafting.k}, a default"
    if each.gain is not None:
        said = f"{each.gain.value:.2f} times as fast as {name}, {_ends(each.gain, 2)}"
    else:
        said = f"it is {name}" if each.ran == run and each.drafts else name
    if not each.drafts:
        said += ": drafts nothing on these prompts"
    elif each.ran is not None and each.ran != each.drafting:
        said += f": in the steps of {each.ran.label} with K = {each.ran.k}"
    yield f"  {said}"
