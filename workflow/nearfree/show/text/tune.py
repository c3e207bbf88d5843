"""The answer of `nearfree tune`, as text and as JSON."""

import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from nearfree.core.drafting import Drafting
from nearfree.core.plan import DecodePlan
from nearfree.derive.schedule.llama_cpp import MODEL
from nearfree.derive.tune.answer import Answer, OverDefault, Setting
from nearfree.derive.tune.choice import Choice, choose
from nearfree.derive.tune.curve import EngineCurve
from nearfree.derive.tune.interval import Interval
from nearfree.derive.tune.recorded import Recorded
from nearfree.log.events import EngineLoaded
from nearfree.log.evidence import Take
from nearfree.show.text.forecast import columns
from nearfree.units import US_PER_MS

SCHEMA = 1
NOT = {
    "none": "do not speculate: nothing beat none by more than the noise",
    "undecided": "undecided: a setting was faster than none, but not by more than the noise",
}
"""The verdicts that are not to speculate, in words."""
_SHELL = {"llama_cpp": ("llama-server", "-m", "-t")}


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
        "paste": _paste(said, model, draft),
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


def _best(said: Recorded) -> Iterator[tuple[str, Choice]]:
    """Yield what is predicted best of each kind of prompts that are tuned on, and of all."""
    kinds = sorted({trace.kind for trace in said.traces})
    for kind in [*kinds, "all"] if len(kinds) > 1 else ["all"]:
        tuned = [each for each in said.traces if not each.held_out and kind in (each.kind, "all")]
        best = choose(tuned, said.cost, said.plan.weighed)
        if best.none.tokens_s:  # else all its outputs ended with their first token
            yield kind, best


def _predicted(kind: str, best: Choice) -> dict[str, Any]:
    none = best.none.tokens_s
    return {
        "prompts": kind,
        **_plain(best.chosen.drafting),
        "tokens_s": best.chosen.tokens_s,
        "over_none": best.chosen.tokens_s / none,
        "cut_over_none": best.cut and best.cut.tokens_s / none,
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


def paste(
    engine: str,
    run: Drafting,
    model: Path,
    draft: Path | None,
    temperature: float,
    *,
    batch: int = 1,
    positions: int = 0,
) -> str:
    """Return the options of an engine's own program that ask for a setting.

    Parameters
    ----------
    batch, positions
        Prompts that are decoded at once, and the positions that each may take. A server that is
        told its slots gives each a cache of its own, as they had here.
    """
    if engine not in _SHELL:
        return _python(run)
    program, weights, threads = _SHELL[engine]
    words = [program, weights, str(model), threads, str(run.threads)]
    words += [] if run.repack else ["--no-repack"]
    if run.drafter == "draft_model":
        words += ["-md", str(draft), "--spec-type", MODEL, "--spec-draft-n-max", str(run.k)]
    else:
        words += ["--spec-type", run.drafter.replace("_", "-"), *_sizes(run)]
    if batch > 1:
        words += ["--parallel", str(batch), "-c", str(batch * positions)]
    if temperature:
        words += ["--samplers", "temperature", "--temp", f"{temperature:g}"]
    return shlex.join(words)


def _paste(said: Recorded, model: Path, draft: Path | None) -> str:
    plan = said.plan
    return paste(
        plan.engine,
        said.answer.run,
        model,
        draft,
        plan.temperature,
        batch=plan.batch,
        positions=plan.positions,
    )


def _sizes(run: Drafting) -> Iterator[str]:
    """Yield the options of a lookup of llama.cpp that say how much it looks for and drafts."""
    sizes: dict[str, int] = {}
    if run.drafter == "ngram_mod":
        sizes = {"n-match": run.ngram_max, "n-max": run.k, "n-min": run.shortest}
    elif run.drafter not in ("none", "ngram_cache"):  # the latter has no such option
        sizes = {"size-n": run.ngram_max, "size-m": run.k}
    for name, value in sizes.items():
        yield f"--spec-{run.drafter.replace('_', '-')}-{name}"
        yield str(value)


def _python(run: Drafting) -> str:
    """Return the settings of a generation as openvino_genai's config takes them."""
    if run.drafter == "none":
        return "prompt_lookup=False"
    lengths = f", max_ngram_size={run.ngram_max}" if run.ngram_max else ""
    return f"num_assistant_tokens={run.k}{lengths}"


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
    yield from _verdict(answer)
    yield ""
    yield "to run:"
    yield f"  {_paste(said, model, draft)}"
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
