"""The answer of `nearfree tune` as JSON, and what its text has in common with it."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nearfree.core.drafting import Drafting
from nearfree.derive.tune.choice import Choice
from nearfree.derive.tune.interval import Interval
from nearfree.derive.tune.recorded import KindAnswer, OverDefault, RecordedProof, Setting
from nearfree.log.events import EngineLoaded
from nearfree.log.evidence import Take
from nearfree.show.text.tune_line import paste

SCHEMA = 1


def document(record: RecordedProof, model: Path, draft: Path | None) -> Any:
    """Return the answer as plain data for JSON; its keys are part of the command's interface.

    Parameters
    ----------
    model, draft
        The files of the model and of the draft model, for the command to paste.
    """
    answer, takes = record.answer, record.takes
    loaded = loaded_engine(takes)
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
            "kv_dtype": curve.setting.kv_dtype,
            "context": curve.setting.context,
            "batch": curve.setting.batch,
            "seconds": curve.timer,
        },
        "settings": [_setting(setting) for setting in answer.settings],
        "predicted": [predicted_choice(kind, choice) for kind, choice in choices_by_kind(record)],
        "by_kind": {
            kind: _kind_json(record, result, model, draft) for kind, result in record.kinds.items()
        },
        "choice": _plain(answer.run),
        "gain": {
            "over_none": _interval(answer.over_none),
            "over_default": _interval(answer.over_default),
            "over_defaults": [_over_default(over) for over in answer.over_defaults],
        },
        "verdict": answer.verdict,
        "held_out": {
            "prompts": answer.prompts,
            "repeats": answer.repeats,
            "seconds": answer.seconds,
            "loop": answer.loop,
            "temperature": record.plan.temperature,
            "batch": record.plan.batch,
            "over_none": [_over_none(setting) for setting in answer.settings],
        },
        "paste": paste_line(record, answer.run, model, draft),
        "events": [str(take.name) for take in takes],
    }


def _plain(drafting: Drafting) -> dict[str, Any]:
    return {
        "k": drafting.k,
        "drafter": drafting.label,
        "threads": drafting.threads,
        "repack": drafting.repack,
        "kv_dtype": drafting.kv_dtype,
    }


def _setting(setting: Setting) -> dict[str, Any]:
    run = setting.result
    return {
        **_plain(run.drafting),
        "predicted_tokens_s": setting.predicted_tokens_s,
        "tokens_s": _interval(run.tokens_s),
        "identical_share": run.identical,
        "steps_equal": run.steps_equal,
        "exact": run.exact,
        "first_difference": run.first_difference,
        "margin": run.margin,
    }


def choices_by_kind(record: RecordedProof) -> list[tuple[str, Choice]]:
    """Return the predicted choice for each kind of tuning prompts, and for all of them."""
    by_kind = [(kind, result.choice) for kind, result in record.kinds.items()]
    return [*by_kind, ("all", record.choice)]


def predicted_choice(kind: str, choice: Choice) -> dict[str, Any]:
    """Return the choice for a kind of prompts with its predicted speed, and that of cut drafts."""
    none = choice.none.tokens_s
    return {
        "prompts": kind,
        **_plain(choice.chosen.drafting),
        "tokens_s": choice.chosen.tokens_s,
        "over_none": choice.chosen.tokens_s / none,
        "cut_over_none": choice.cut and choice.cut.tokens_s / none,
    }


def _kind_json(
    record: RecordedProof, result: KindAnswer, model: Path, draft: Path | None
) -> dict[str, Any]:
    choice = result.choice
    return {
        "choice": _plain(choice.chosen.drafting),
        "predicted_over_none": choice.chosen.tokens_s / choice.none.tokens_s,
        "over_none": _interval(result.gain),
        "run": _plain(result.run),
        "paste": paste_line(record, result.run, model, draft),
        "copied_share": {"tuned": result.copied_tuned, "held_out": result.copied_held_out},
    }


def _over_none(setting: Setting) -> dict[str, Any]:
    return {
        **_plain(setting.result.drafting),
        "all": _interval(setting.gain),
        "kinds": {kind: _interval(gain) for kind, gain in setting.kinds.items()},
    }


def _over_default(over: OverDefault) -> dict[str, Any]:
    return {
        **_plain(over.drafting),
        "drafts": over.drafts,
        "ran_as": None if over.ran is None else _plain(over.ran),
        "over": _interval(over.gain),
    }


def _interval(interval: Interval | None) -> dict[str, float | None] | None:
    """Return an interval; its ends are null where they are unknown, as JSON has no infinity."""
    if interval is None:
        return None
    known = interval.high != float("inf")
    return {
        "value": interval.value,
        "low": interval.low if known else None,
        "high": interval.high if known else None,
    }


def loaded_engine(takes: Sequence[Take]) -> EngineLoaded:
    """Return the first event that records the engine in some takes."""
    loaded: EngineLoaded = next(e.data for take in takes for e in take.events_of(EngineLoaded))
    return loaded


def paste_line(record: RecordedProof, run: Drafting, model: Path, draft: Path | None) -> str:
    """Return the line to paste for one setting of a proof."""
    plan = record.plan
    return paste(
        plan.engine,
        run,
        model,
        draft,
        plan.temperature,
        batch=plan.batch,
        positions=plan.positions,
    )
