"""Table `tuning`: what was predicted of each setting of an engine, and what those that ran did."""

from collections.abc import Iterator
from typing import Any

from nearfree.config.prompts import ALL
from nearfree.core.drafting import Drafting
from nearfree.derive.tables.columns import amount, count, flag, number, text
from nearfree.derive.tables.schema import Table
from nearfree.derive.tables.store import seals_digest, write_table
from nearfree.derive.tune.curve import curve_of
from nearfree.derive.tune.proof import Proven, by_setting, gain, proven
from nearfree.derive.tune.recorded import Recorded, is_proof, recorded
from nearfree.derive.tune.replayed import tokens_a_second
from nearfree.errors import EvidenceError
from nearfree.log.events import DecodeMeasured, Event
from nearfree.log.evidence import read_scope
from nearfree.log.names import Layout, parse_take

SUFFIX = "_tune"
"""What the streams of proofs end with."""
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
        "take": count("which take"),
        "plan8": text("first digits of the plan's digest"),
        "newest": flag(
            "whether no newer proof of the study weighs the same, as hot, at that batch"
        ),
        "engine": text("what decoded"),
        "release": text("its release"),
        "model": text("what the log calls the model"),
        "weights_sha256": text("the SHA-256 of its weights"),
        "kind": text("of the prompts; all of them together"),
        "role": text("why the setting is there", one_of=ROLES),
        "drafter": text("what drafts, with its n-gram lengths"),
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
        "seconds": text("whose seconds: wall or process time", one_of=("wall", "process")),
        "runs": count("decodes that it ran", nullable=True),
        "identical_share": number("share of outputs equal to those of none", nullable=True),
        "first_difference": count("equal tokens before the first", nullable=True, at_least=0),
        "margin": number("lead of the best logit there", nullable=True),
        "steps_equal": flag("whether all step lists were as replayed", nullable=True),
        "exact": flag("whether the engine is held to give the same output", nullable=True),
        "forwards": text("the take whose T(N) prices the steps"),
        "verdict": text("of the proof", one_of=("speculate", "none", "undecided")),
        "run": flag("whether it is what the proof says to run"),
        "loop": text("what speculated"),
        "origin": text("where its times come from", one_of=("measured",)),
    },
)
Row = dict[str, Any]
_RAN = ("tokens_s", "gain", "runs", "identical_share", "first_difference", "margin")
_UNRUN: Row = dict.fromkeys(
    (*_RAN, *(f"{name}_{end}" for name in _RAN[:2] for end in ("low", "high")))
) | dict.fromkeys(("steps_equal", "exact"))
"""The columns of what ran, for a setting that did not."""


def write_tuning(layout: Layout, scope: str) -> None:
    """Write what each proof of a scope says, by the log alone."""
    rows, known = [], set()
    proofs = _proofs(layout, scope)
    newest = {_about(each): str(each.proof.name) for each in proofs}
    for each in proofs:
        is_newest = newest[_about(each)] == str(each.proof.name)
        rows += list(_rows(each, newest=is_newest))
        known |= {event.event_id for take in each.takes for event in take.events}
    table = TUNING.build(TUNING.frame(rows), known)
    write_table(layout, scope, TUNING, table, seals_digest(layout, scope))


def _proofs(layout: Layout, scope: str) -> list[Recorded]:
    """Return a scope's proofs, the newest last; those whose grounds were retracted are left out."""
    streams = sorted({n.stream for n in layout.takes(scope) if n.stream.endswith(SUFFIX)})
    takes = [take for name in streams for take in read_scope(layout, scope, stream=name)]
    found = []
    for proof in sorted(filter(is_proof, takes), key=lambda take: take.order):
        named = {parse_take(name).stream for name in proof.started.data.plan.made_from}
        others = [take for name in named for take in read_scope(layout, scope, stream=name)]
        try:
            found.append(recorded(proof, {str(take.name): take for take in others}))
        except EvidenceError:
            continue
    return found


def _about(each: Recorded) -> tuple[str, tuple[Drafting, ...], str, float, int]:
    plan = each.plan
    draft = plan.draft.digest if plan.draft else ""
    return each.proof.name.stream, plan.weighed, draft, plan.temperature, plan.batch


def _rows(each: Recorded, *, newest: bool) -> Iterator[Row]:
    plan, name, answer = each.plan, each.proof.name, each.answer
    same = {
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
    events = each.proof.of(DecodeMeasured)
    kinds = sorted({event.data.kind for event in events})
    for kind in [ALL, *(kinds if len(kinds) > 1 else [])]:
        mine = [event for event in events if kind in (ALL, event.data.kind)]
        for row in _of_kind(each, kind, by_setting(mine)):
            yield {**same, **row}


def _of_kind(each: Recorded, kind: str, runs: dict[Drafting, list[Event]]) -> Iterator[Row]:
    """Yield the settings that ran, and those weighed on the choice's threads and storage."""
    choice, answer = each.choice, each.answer
    none, chosen = choice.none.drafting, choice.chosen.drafting
    proven_prompts = {part.sha256 for part in each.plan.prompts}
    ran_on = [trace for trace in each.traces if trace.prompt in proven_prompts]
    held = [trace for trace in ran_on if kind in (ALL, trace.kind)]
    by_prompt = {trace.prompt: trace for trace in held}
    one = None if kind == ALL else kind
    plain = tokens_a_second(ran_on, none, each.cost, one)
    if not plain:
        return  # every output ended with its first token: nothing was decoded
    weighed = [
        ranked.drafting
        for ranked in choice.ranked
        if (ranked.drafting.threads, ranked.drafting.repack) == (chosen.threads, chosen.repack)
    ]
    for drafting in dict.fromkeys([*runs, *weighed]):
        predicted = tokens_a_second(ran_on, drafting, each.cost, one)
        curve = curve_of(each.cost.curves, threads=drafting.threads, repack=drafting.repack)
        row: Row = _UNRUN | {
            "kind": kind,
            "role": _role(each, drafting),
            "drafter": drafting.label,
            "k": drafting.k,
            "threads": drafting.threads,
            "repack": drafting.repack,
            "predicted_tokens_s": predicted,
            "predicted_gain": predicted / plain,
            "run": drafting == answer.run,
            "from_ids": [*curve.ids, *(i for trace in held for i in trace.ids)],
        }
        if ran := runs.get(drafting):
            said = proven(drafting, ran, by_prompt, answer.seconds)
            over = gain(ran, runs[none], answer.seconds)
            row |= _measured(said) | {
                "gain": over.value,
                "gain_low": over.low,
                "gain_high": _finite(over.high),
            }
            row["from_ids"] += dict.fromkeys((*said.ids, *(e.event_id for e in runs[none])))
        yield row


def _measured(said: Proven) -> Row:
    return {
        "tokens_s": said.tokens_s.value,
        "tokens_s_low": said.tokens_s.low,
        "tokens_s_high": _finite(said.tokens_s.high),
        "runs": said.runs,
        "identical_share": said.identical,
        "first_difference": said.first_difference,
        "margin": said.margin,
        "steps_equal": said.steps_equal,
        "exact": said.exact,
    }


def _finite(value: float) -> float | None:
    return None if value == float("inf") else value


def _role(each: Recorded, drafting: Drafting) -> str:
    if drafting == each.choice.chosen.drafting:
        return "choice"
    if drafting.drafter == "none":
        return "none" if drafting == each.choice.none.drafting else "predicted"
    if drafting in (each.plan.default, *each.plan.defaults):
        return "default"
    return "neighbour" if drafting in each.choice.neighbours else "predicted"
