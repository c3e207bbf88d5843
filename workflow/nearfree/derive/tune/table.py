"""Table `tuning`: speeds of an engine's settings, predicted, and measured where they ran."""

from collections.abc import Iterator
from typing import Any

from nearfree.config.prompts import ALL
from nearfree.core.drafting import Drafting
from nearfree.derive.tables.columns import amount, count, finite, flag, number, text
from nearfree.derive.tables.schema import Table
from nearfree.derive.tables.store import seals_digest, write_table
from nearfree.derive.tune.curve import curve_of
from nearfree.derive.tune.interval import Interval
from nearfree.derive.tune.plans import SUFFIX
from nearfree.derive.tune.proof import RunResult, by_setting, gain, run_result
from nearfree.derive.tune.recorded import RecordedProof, is_proof, read_proof
from nearfree.derive.tune.replayed import tokens_per_second
from nearfree.errors import EvidenceError
from nearfree.log.events import DecodeMeasured, Event
from nearfree.log.evidence import read_scope
from nearfree.log.names import Layout, parse_take

ROLES = ("none", "default", "choice", "neighbour", "predicted")
TUNING = Table(
    name="tuning",
    row="a setting of an engine that decodes, on held-out prompts of one kind or of all",
    key=("platform", "stream", "take", "plan8", "kind", "drafter", "k", "threads", "repack"),
    formula=(
        "predicted: tokens after the first over the sum of T(1 + d) over replayed steps; measured: "
        "tokens over seconds of a repeat, their geometric mean over repeats with its t-interval; "
        "gain: the ratio of tokens a second to none's over all visits, with the t-interval of what "
        "visits of one prompt differ by"
    ),
    code="nearfree.derive.tune",
    body={
        "platform": text("the kind of machine"),
        "stream": text("the study of the proof"),
        "take": count("the take"),
        "plan8": text("first digits of the plan's digest"),
        "newest": flag(
            "whether no newer proof of the study weighs the same, as hot, at that batch"
        ),
        "engine": text("the engine that decoded"),
        "release": text("its release"),
        "model": text("the model's name in the log"),
        "weights_sha256": text("the SHA-256 of its weights"),
        "kind": text("of the prompts; all of them together"),
        "role": text("why the setting is there", one_of=ROLES),
        "drafter": text("the drafter, with its n-gram lengths and the engine's cache"),
        "k": count("K, drafts of a step at most", at_least=0),
        "temperature": number("of sampling; none of greedy decoding", nullable=True),
        "batch": count("prompts at once; none of one alone", nullable=True),
        "threads": count("CPU threads"),
        "repack": flag("whether the engine may store weights in an order of its own"),
        "predicted_tokens_s": amount("tokens a second that T(N) and the traces give"),
        "predicted_gain": amount("the same over that of none"),
        "tokens_s": amount("tokens a second when it ran", nullable=True),
        "tokens_s_low": number("lower end of its 95 % interval", nullable=True),
        "tokens_s_high": number("upper end of it; none of a single repeat", nullable=True),
        "gain": amount("times as fast as none, paired within visits of a prompt", nullable=True),
        "gain_low": number("lower end of its 95 % interval", nullable=True),
        "gain_high": number("upper end of it; none of a single repeat", nullable=True),
        "seconds": text("the clock of seconds: wall or process time", one_of=("wall", "process")),
        "runs": count("decodes that it ran", nullable=True),
        "identical_share": number("share of outputs equal to those of none", nullable=True),
        "first_difference": count("equal tokens before the first", nullable=True, at_least=0),
        "margin": number("lead of the best logit there", nullable=True),
        "steps_equal": flag("whether all step lists were as replayed", nullable=True),
        "exact": flag("whether the engine is held to give the same output", nullable=True),
        "forwards": text("the take whose T(N) prices the steps"),
        "verdict": text("of the proof", one_of=("speculate", "none", "undecided")),
        "run": flag("whether the proof recommends it"),
        "loop": text("the loop that speculated"),
        "origin": text("where its times come from", one_of=("measured",)),
    },
)
Row = dict[str, Any]
_RUN_COLUMNS = ("tokens_s", "gain", "runs", "identical_share", "first_difference", "margin")
_NOT_RUN: Row = dict.fromkeys(
    (*_RUN_COLUMNS, *(f"{name}_{end}" for name in _RUN_COLUMNS[:2] for end in ("low", "high")))
) | dict.fromkeys(("steps_equal", "exact"))
"""The measured columns of a setting that did not run."""


def write_tuning(layout: Layout, scope: str) -> None:
    """Write the answers of a scope's proofs, from the log alone."""
    rows, event_ids = [], set()
    proofs = _proofs(layout, scope)
    newest = {_proof_key(record): str(record.proof.name) for record in proofs}
    for record in proofs:
        is_newest = newest[_proof_key(record)] == str(record.proof.name)
        rows += list(_rows(record, newest=is_newest))
        event_ids |= {event.event_id for take in record.takes for event in take.events}
    table = TUNING.build(TUNING.frame(rows), event_ids)
    write_table(layout, scope, TUNING, table, seals_digest(layout, scope))


def _proofs(layout: Layout, scope: str) -> list[RecordedProof]:
    """Return a scope's proofs, the newest last, without those whose takes were retracted."""
    streams = sorted({take.stream for take in layout.takes(scope) if take.stream.endswith(SUFFIX)})
    takes = [take for name in streams for take in read_scope(layout, scope, stream=name)]
    proofs = []
    for proof in sorted(filter(is_proof, takes), key=lambda take: take.order):
        made_from = {parse_take(name).stream for name in proof.started.data.plan.made_from}
        others = [take for name in made_from for take in read_scope(layout, scope, stream=name)]
        try:
            proofs.append(read_proof(proof, {str(take.name): take for take in others}))
        except EvidenceError:
            continue
    return proofs


def _proof_key(record: RecordedProof) -> tuple[str, tuple[Drafting, ...], str, float, int]:
    """Return what a newer proof must share to supersede this one."""
    plan = record.plan
    draft = plan.draft.digest if plan.draft else ""
    return record.proof.name.stream, plan.weighed, draft, plan.temperature, plan.batch


def _rows(record: RecordedProof, *, newest: bool) -> Iterator[Row]:
    plan, name, answer = record.plan, record.proof.name, record.answer
    shared = {
        "platform": name.scope,
        "stream": name.stream,
        "take": name.take,
        "plan8": name.plan8,
        "newest": newest,
        "engine": plan.engine,
        "release": plan.release,
        "model": plan.model,
        "weights_sha256": getattr(plan.weights, "sha256", plan.weights.digest),
        "temperature": plan.temperature or None,
        "batch": plan.batch if plan.batch > 1 else None,
        "seconds": answer.seconds,
        "forwards": plan.made_from[0],
        "verdict": answer.verdict,
        "loop": answer.loop,
        "origin": "measured",
    }
    events = record.proof.events_of(DecodeMeasured)
    kinds = sorted({event.data.kind for event in events})
    for kind in [ALL, *(kinds if len(kinds) > 1 else [])]:
        of_kind = [event for event in events if kind in (ALL, event.data.kind)]
        for row in _kind_rows(record, kind, by_setting(of_kind)):
            yield {**shared, **row}


def _kind_rows(
    record: RecordedProof, kind: str, runs: dict[Drafting, list[Event]]
) -> Iterator[Row]:
    """Yield the settings that ran, and the candidates with the choice's threads and storage."""
    choice, answer = record.choice, record.answer
    none, chosen = choice.none.drafting, choice.chosen.drafting
    proven_prompts = {part.sha256 for part in record.plan.prompts}
    proof_traces = [trace for trace in record.traces if trace.prompt in proven_prompts]
    kind_traces = [trace for trace in proof_traces if kind in (ALL, trace.kind)]
    by_prompt = {trace.prompt: trace for trace in kind_traces}
    only_kind = None if kind == ALL else kind
    undrafted_tokens_s = tokens_per_second(proof_traces, none, record.cost, only_kind)
    if not undrafted_tokens_s:
        return  # every output ended with its first token: nothing was decoded
    weighed = [ranked.drafting for ranked in choice.ranked if ranked.drafting.beside(chosen)]
    for drafting in dict.fromkeys([*runs, *weighed]):
        predicted = tokens_per_second(proof_traces, drafting, record.cost, only_kind)
        curve = curve_of(record.cost.curves, drafting)
        row: Row = _NOT_RUN | {
            "kind": kind,
            "role": _role(record, drafting),
            "drafter": drafting.label,
            "k": drafting.k,
            "threads": drafting.threads,
            "repack": drafting.repack,
            "predicted_tokens_s": predicted,
            "predicted_gain": predicted / undrafted_tokens_s,
            "run": drafting == answer.run,
            "from_ids": [*curve.ids, *(id_ for trace in kind_traces for id_ in trace.ids)],
        }
        if events := runs.get(drafting):
            result = run_result(drafting, events, by_prompt, answer.seconds)
            row |= _measured(result, gain(events, runs[none], answer.seconds))
            row["from_ids"] += dict.fromkeys(
                (*result.ids, *(event.event_id for event in runs[none]))
            )
        yield row


def _measured(result: RunResult, over_none: Interval) -> Row:
    return {
        "tokens_s": result.tokens_s.value,
        "tokens_s_low": result.tokens_s.low,
        "tokens_s_high": finite(result.tokens_s.high),
        "gain": over_none.value,
        "gain_low": over_none.low,
        "gain_high": finite(over_none.high),
        "runs": result.runs,
        "identical_share": result.identical,
        "first_difference": result.first_difference,
        "margin": result.margin,
        "steps_equal": result.steps_equal,
        "exact": result.exact,
    }


def _role(record: RecordedProof, drafting: Drafting) -> str:
    if drafting == record.choice.chosen.drafting:
        return "choice"
    if drafting.drafter == "none":
        return "none" if drafting == record.choice.none.drafting else "predicted"
    if drafting in (record.plan.default, *record.plan.defaults):
        return "default"
    return "neighbour" if drafting in record.choice.neighbours else "predicted"
