"""Tuning from the log: predictions, choice, verdict, and the table."""

from pathlib import Path

import msgspec
import pytest
from conftest import write_payloads
from msgspec import structs
from nearfree.config.prompts import ALL
from nearfree.core.drafting import Drafting, Steps
from nearfree.core.plan import plan_digest
from nearfree.derive.tables.store import read_table
from nearfree.derive.tune.choice import choose_by_kind
from nearfree.derive.tune.curve import EngineCurve
from nearfree.derive.tune.interval import Interval
from nearfree.derive.tune.plans import trace_plan
from nearfree.derive.tune.proof import joint_confidence, verdict
from nearfree.derive.tune.recorded import RecordedProof, read_proof
from nearfree.derive.tune.replayed import (
    Cost,
    copied_share,
    draft_forwards,
    refuse_empty,
    traces_of,
)
from nearfree.derive.tune.table import TUNING, write_tuning
from nearfree.errors import EvidenceError
from nearfree.log.events import DraftsTraced
from nearfree.log.evidence import Take, read_take
from nearfree.log.names import Layout
from nearfree.log.retract import retract
from nearfree.log.take import take_name

from derive.tune.tuned import (
    CACHE,
    DEFAULT,
    DEFAULTS,
    FLAT,
    IDLE,
    MIDDLING,
    SETTING,
    SOURCES,
    STEEP,
    TOKENS,
    about,
    available,
    decode,
    line,
    on,
    tuned_subject,
    write_all,
    write_forwards,
    write_proof,
    write_trace,
)


def proof_of(takes: list[Take]) -> RecordedProof:
    """Return a recorded proof, given the takes before it."""
    return read_proof(takes[-1], {str(take.name): take for take in takes[:-1]})


def curve(t_us: dict[int, float]) -> EngineCurve:
    """Return a curve of exact times."""
    times = tuple(t_us.values())
    return EngineCurve(
        setting=SETTING, timer="wall", n=tuple(t_us), t_us=times, low_us=times, high_us=times
    )


def test_a_trace_over_another_output_is_refused(layout: Layout) -> None:
    """A trace of another output than the decoded one is refused."""
    plan = trace_plan(tuned_subject(), SOURCES[:1], Drafting())
    (part, *_) = plan.prompts
    other = about(plan, part) | {"output_tokens": TOKENS - 1, "output_sha256": "d" * 64}
    payloads = [
        decode(plan, part, Drafting(), seconds=1.0),
        DraftsTraced(**other, drafting=plan.traced[0], available=available(part.kind)),  # type: ignore[arg-type]
    ]
    name = take_name("cpu", "llama_cpp_tiny_trace", 1, plan)
    write_payloads(layout, name, plan, *payloads)
    with pytest.raises(EvidenceError, match="over another output than the one"):
        traces_of([read_take(layout, name)])


def test_t_between_two_n_is_on_the_line_between_them() -> None:
    """Measured N keep their latency; beyond the grid T(N) is unknown."""
    known = curve({1: 10.0, 4: 40.0, 8: 48.0})
    assert [known.at(n) for n in (1, 2, 4, 6, 8)] == [10, 20, 40, 44, 48]
    with pytest.raises(EvidenceError, match="N = 9 is asked"):
        known.at(9)


def test_edges_are_where_a_row_costs_less_than_before() -> None:
    """With tiles of four, rows are cheapest at full tiles."""
    tiles = {n: 100.0 * -(-n // 4) for n in (1, 2, 3, 4, 5, 7, 8, 9)}
    assert curve(tiles).edges == (1, 2, 3, 4)
    assert curve({1: 100.0, 2: 300.0, 3: 290.0, 4: 410.0, 8: 480.0}).edges == (1, 3, 8)


def test_a_draft_model_decodes_what_it_has_not_seen_first() -> None:
    """After a fully accepted draft the draft model decodes two tokens first, else one."""
    steps = Steps(rows=(4, 4, 1, 3), accepted=(3, 1, 0, 0))
    assert list(draft_forwards(steps)) == [1, 1, 1, 2, 1, 1, 2, 1]


def test_where_rows_are_almost_free_it_speculates(layout: Layout) -> None:
    """With constant T(N) and copied text the longest drafts are chosen, with the predicted gain."""
    proof = proof_of(write_all(layout, FLAT))
    assert proof.answer.verdict == "speculate"
    assert proof.answer.run == proof.choice.chosen.drafting
    assert proof.answer.run.k > 16
    assert proof.answer.over_none is not None
    assert proof.answer.over_none.low > 1.5
    for setting in proof.answer.settings:
        assert setting.result.steps_equal
        assert setting.result.identical == 1
        assert setting.predicted_tokens_s == pytest.approx(setting.result.tokens_s.value, rel=0.02)


def test_each_type_has_its_default_beside_what_to_run(layout: Layout) -> None:
    """Default settings that draft ran, too; one that never drafts counts as none."""
    proof = proof_of(write_all(layout, FLAT))
    ran = {setting.result.drafting for setting in proof.answer.settings}
    assert {DEFAULT, CACHE} <= ran
    assert IDLE not in ran
    by_default = {
        over_default.drafting: over_default for over_default in proof.answer.over_defaults
    }
    assert list(by_default) == list(DEFAULTS)
    assert [setting_.drafts for setting_ in by_default.values()] == [True, True, False]
    assert by_default[DEFAULT].gain == proof.answer.over_default
    assert by_default[IDLE].gain == proof.answer.over_none
    cache = by_default[CACHE].gain
    assert cache is not None
    assert cache.low > 1


def test_a_default_on_other_threads_is_not_what_none_was(layout: Layout) -> None:
    """A default that never drafts counts as none only if none ran on its threads."""
    takes = [write_forwards(layout, FLAT), write_trace(layout)]
    proof = write_proof(layout, takes, FLAT, defaults=(on(IDLE, 2),))
    (over,) = proof_of([*takes, proof]).answer.over_defaults
    assert (over.drafts, over.ran, over.gain) == (False, None, None)


def test_a_default_in_the_steps_of_another_does_not_run_twice(layout: Layout) -> None:
    """Two types with equal drafts are run once, for both comparisons."""
    alike = Drafting(drafter="ngram_map_k", k=CACHE.k, ngram_max=12, ngram_min=12)
    takes = [write_forwards(layout, FLAT), write_trace(layout, (DEFAULT, CACHE, alike))]
    proof = write_proof(layout, takes, FLAT, defaults=(CACHE, alike))
    cache, other = proof_of([*takes, proof]).answer.over_defaults
    assert alike not in proof.started.data.plan.runs
    assert (cache.ran, other.ran) == (CACHE, CACHE)
    assert other.drafts
    assert other.gain == cache.gain


def test_where_every_row_costs_as_much_it_does_not(layout: Layout) -> None:
    """If T(N) rises steeply, none is chosen, and the two nearest settings ran."""
    proof = proof_of(write_all(layout, STEEP))
    assert proof.answer.verdict == "none"
    assert proof.answer.run == proof.choice.none.drafting
    assert proof.answer.over_none is None
    assert len(proof.choice.neighbours) == 2


def test_a_choice_that_wins_less_than_its_noise_is_undecided(layout: Layout) -> None:
    """A gain within its noise is undecided, and none is what to run."""
    proof = proof_of(write_all(layout, FLAT, noise=(0.2, 2.0, 0.9)))
    assert proof.answer.verdict == "undecided"
    assert proof.answer.run.drafter == "none"


def test_the_choice_is_by_prompts_that_are_tuned_on(layout: Layout) -> None:
    """Held-out prompts do not influence the choice."""
    proof = proof_of(write_all(layout, FLAT))
    tuned = {part.sha256 for part in proof.plan.prompts if not part.held_out}
    assert not tuned
    assert {trace.held_out for trace in proof.traces} == {True, False}
    assert proof.answer.prompts == 2


def test_each_kind_chooses_apart_and_its_choice_is_proven(layout: Layout) -> None:
    """Where all prompts together are best without drafts, those that copy are not.

    Their choice runs, though nothing else asks for it, and is what to run on such prompts.
    """
    proof = proof_of(write_all(layout, MIDDLING, default=None, defaults=()))
    assert proof.choice.chosen.drafting.drafter == "none"
    assert proof.answer.verdict == "none"
    copying, text = proof.kinds["copying"], proof.kinds["text"]
    chosen = copying.choice.chosen
    assert chosen.drafting in proof.plan.runs
    assert chosen.drafting not in proof.choice.neighbours
    assert copying.gain is not None
    assert copying.gain.low > 1
    predicted = chosen.tokens_s / copying.choice.none.tokens_s
    assert copying.gain.value == pytest.approx(predicted, rel=0.02)
    assert copying.run == chosen.drafting
    assert (text.run.drafter, text.gain) == ("none", None)


def test_a_kinds_choice_that_won_less_than_its_noise_is_not_to_run(layout: Layout) -> None:
    """A kind's choice with a gain within its noise is reported, and none is what to run."""
    copying = proof_of(write_all(layout, MIDDLING, noise=(1.0, 2.0, 0.4))).kinds["copying"]
    assert copying.gain is not None
    assert copying.gain.low < 1
    assert copying.run.drafter == "none"
    takes = [read_take(layout, name) for name in layout.takes("cpu")]
    (tuned, *_) = [trace for trace in traces_of(takes) if not trace.held_out]
    curves = Cost(curves=[curve(MIDDLING)])
    assert choose_by_kind([tuned], curves, SOURCES) == {}
    ended = structs.replace(tuned, kind="other", tokens=1)
    assert set(choose_by_kind([tuned, ended], curves, SOURCES)) == {tuned.kind}


def test_how_much_is_copied_is_what_three_tokens_foretell(layout: Layout) -> None:
    """The copied share is 1 for copies, 0 for free text, and unknown without a lookup's trace."""
    proof = proof_of(write_all(layout, FLAT)).kinds
    assert (proof["copying"].copied_tuned, proof["copying"].copied_held_out) == (1, 1)
    assert (proof["text"].copied_tuned, proof["text"].copied_held_out) == (0, 0)
    takes = [read_take(layout, name) for name in layout.takes("cpu")]
    (known, *_) = traces_of(takes)
    assert copied_share([known]) == 1
    assert copied_share([structs.replace(known, available={})]) is None
    assert copied_share([structs.replace(known, tokens=1, available={})]) is None


def test_a_gain_is_paired_within_repeats(layout: Layout) -> None:
    """A repeat that slows all settings does not widen the gain's interval."""
    assert verdict([Interval(1.2, 1.1, 1.3)]) == "speculate"
    assert verdict([Interval(0.9, 0.8, 1.2)]) == "none"
    assert verdict([Interval(0.9, 0.8, 1.2), Interval(1.1, 0.9, 1.4)]) == "undecided"
    assert verdict([]) == "none"
    assert joint_confidence(5) == pytest.approx(0.99)


def test_outputs_that_end_at_once_are_refused(layout: Layout) -> None:
    """Outputs without decoded tokens are refused."""
    proof = proof_of(write_all(layout, FLAT)).traces
    refuse_empty(proof)
    with pytest.raises(EvidenceError, match="ended every answer with its first token"):
        refuse_empty([structs.replace(trace, tokens=1) for trace in proof])


def test_a_proof_without_its_grounds_says_which(layout: Layout) -> None:
    """A missing take of a proof is named."""
    takes = write_all(layout, FLAT)
    with pytest.raises(EvidenceError, match="llama_cpp_tiny/1-"):
        read_proof(takes[-1], {})


def test_two_at_once_are_priced_by_the_rows_of_both(layout: Layout) -> None:
    """What is predicted of two slots is what steps of both take, of all prompts and of each kind.

    T(N) of the batch, and of one row alone, are read at the rows of all; alone it is otherwise.
    """
    takes = [write_forwards(layout, FLAT, few=(1,)), write_trace(layout)]
    proof = proof_of([*takes, write_proof(layout, takes, FLAT, batch=2, noise=(1.0,) * 3)])
    assert proof.cost.batch == 2
    assert {curve.setting.batch for curve in proof.cost.curves} == {2}
    for setting in proof.answer.settings:
        assert setting.result.steps_equal
        assert setting.predicted_tokens_s == pytest.approx(setting.result.tokens_s.value, rel=0.03)
    none = next(setting for setting in proof.answer.settings if not setting.result.drafting.k)
    assert none.predicted_tokens_s == pytest.approx(2e6 / line(FLAT, 2), rel=0.03)
    write_tuning(layout, "cpu")
    table = read_table(layout, "cpu", TUNING)
    assert set(table["batch"]) == {2}
    assert set(table["kind"]) == {ALL, "copying", "text"}
    for row in table.drop_nulls("tokens_s").to_dicts():
        assert row["predicted_tokens_s"] == pytest.approx(row["tokens_s"], rel=0.03)


def test_plans_of_one_at_a_time_say_nothing_of_a_batch() -> None:
    """Plans for one prompt at a time have no field `batch`."""
    one, two = (trace_plan(tuned_subject(batch=batch), SOURCES, Drafting()) for batch in (1, 2))
    assert plan_digest(one) == plan_digest(two)
    assert b"batch" not in msgspec.json.encode(one)
    assert plan_digest(structs.replace(one, batch=2)) != plan_digest(one)


def test_proofs_of_two_batches_stand_beside_each_other(layout: Layout) -> None:
    """A proof at another batch replaces none."""
    takes = [write_forwards(layout, FLAT), write_trace(layout)]
    write_proof(layout, takes, FLAT)
    takes[0] = write_forwards(layout, FLAT, few=(1,))
    write_proof(layout, takes, FLAT, batch=2)
    write_tuning(layout, "cpu")
    table = read_table(layout, "cpu", TUNING)
    assert table["newest"].all()
    assert set(table["batch"]) == {None, 2}


def test_the_table_has_all_that_was_weighed_and_what_ran(layout: Layout) -> None:
    """Every weighed setting has a prediction, every setting that ran its measurement."""
    takes = write_all(layout, FLAT)
    write_tuning(layout, "cpu")
    rows = read_table(layout, "cpu", TUNING)
    assert set(rows["kind"]) == {ALL, "copying", "text"}
    every = rows.filter(kind=ALL)
    ran = every.drop_nulls("tokens_s")
    assert set(ran["role"]) >= {"none", "default", "choice", "neighbour"}
    assert set(ran.filter(role="default")["drafter"]) == {"ngram_simple 12", "ngram_cache 1-4"}
    assert every.filter(drafter="ngram_mod 4")["k"].len() > 1
    assert every.height > ran.height
    assert every.filter("run").height == 1
    assert ran.filter(role="none")["gain"].item() == pytest.approx(1)
    one = ran.filter(role="choice").row(0, named=True)
    assert any(event_id.startswith(str(takes[-1].name)) for event_id in one["from_ids"])
    assert any("llama_cpp_tiny/" in event_id for event_id in one["from_ids"])
    text = rows.filter(kind="text", role="choice").row(0, named=True)
    copying = rows.filter(kind="copying", role="choice").row(0, named=True)
    assert copying["gain"] > text["gain"]


def test_what_rests_on_a_retracted_take_is_left_out(layout: Layout) -> None:
    """A proof with a retracted trace has no row."""
    takes = write_all(layout, FLAT)
    retract(layout, str(takes[1].name), "by mistake")
    write_tuning(layout, "cpu")
    assert read_table(layout, "cpu", TUNING).is_empty()


def test_a_scope_without_proofs_has_an_empty_table(tmp_path: Path) -> None:
    """Without proofs the table is empty."""
    layout = Layout(tmp_path)
    layout.events.mkdir(parents=True)
    write_tuning(layout, "cpu")
    assert read_table(layout, "cpu", TUNING).is_empty()
