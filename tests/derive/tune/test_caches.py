"""An engine that drafts with another cache than its own choice, as OpenVINO does."""

import pytest
from msgspec import structs
from nearfree.core.candidates import drafters
from nearfree.core.drafting import Drafting
from nearfree.core.setting import Setting
from nearfree.derive.tune.choice import choose, choose_by_kind, fastest
from nearfree.derive.tune.curve import EngineCurve, curve_of
from nearfree.derive.tune.plans import GRID, trace_plan
from nearfree.derive.tune.replayed import Cost, Trace
from nearfree.errors import EvidenceError

from derive.tune.tuned import SETTING, TOKENS, available, tuned_subject

OPENVINO = structs.replace(SETTING, backend="openvino")
PRECISE = structs.replace(OPENVINO, kv_dtype="float32")
LOOKUPS = drafters("openvino", "prompt_lookup")
OWN = Drafting()
IN_FLOAT32 = Drafting(kv_dtype="float32")


def curve(setting: Setting, t_us: dict[int, float]) -> EngineCurve:
    """Return a curve of exact times."""
    times = tuple(t_us.values())
    return EngineCurve(
        setting=setting, timer="wall", n=tuple(t_us), t_us=times, low_us=times, high_us=times
    )


def curves(own_us: float, first_us: float, row_us: float) -> list[EngineCurve]:
    """Return T(1) with the engine's own cache, and T(N) of a cache in float32."""
    precise = {n: first_us + row_us * (n - 1) for n in GRID}
    return [curve(OPENVINO, {1: own_us}), curve(PRECISE, precise)]


def trace(kind: str) -> Trace:
    """Return a trace of one prompt of a kind."""
    return Trace(
        prompt="a" * 64, kind=kind, held_out=False, tokens=TOKENS, limit=TOKENS, output="b" * 64,
        available={source: available(kind, source) for source in LOOKUPS}, ids=(),
    )  # fmt: skip


def test_drafts_run_with_the_cache_whose_rows_do_not_depend_on_each_other() -> None:
    """Every candidate that drafts has the cache in float32; without drafts both caches compete."""
    choice = choose([trace("copying")], Cost(curves=curves(1000, 1000, 5)), LOOKUPS)
    drafted = {setting.drafting.kv_dtype for setting in choice.ranked if setting.drafting.k}
    undrafted = {setting.drafting.kv_dtype for setting in choice.ranked if not setting.drafting.k}
    assert (drafted, undrafted) == ({"float32"}, {None, "float32"})
    assert choice.chosen.drafting.kv_dtype == "float32"
    assert choice.none.drafting == OWN
    assert {setting.kv_dtype for setting in choice.neighbours} == {"float32"}


def test_drafts_have_to_beat_the_engine_s_own_choice() -> None:
    """Where its own precision is so much faster that no drafts win, none is chosen with that."""
    choice = choose([trace("text")], Cost(curves=curves(500, 1000, 5)), LOOKUPS)
    assert choice.chosen.drafting == choice.none.drafting == OWN
    assert all(setting.k and setting.kv_dtype for setting in choice.neighbours)
    assert len(choice.neighbours) == 2


def test_lookups_alike_on_one_kind_rank_by_all_prompts() -> None:
    """Where the few prompts of a kind cannot tell lookups apart, those of other kinds do."""
    best = LOOKUPS[2]
    telling = {
        source: available("copying" if source == best else "text", source) for source in LOOKUPS
    }
    traces = [trace("copying"), structs.replace(trace("telling"), available=telling)]
    cost = Cost(curves=curves(1000, 1000, 5))
    chosen = {
        form: choose_by_kind(traces, cost, LOOKUPS, form)["copying"].chosen.drafting
        for form in (1, 2)
    }
    assert chosen[1].source == LOOKUPS[0].source
    assert chosen[2].source == best.source
    assert chosen[1].k == chosen[2].k


@pytest.mark.parametrize(("own_us", "place"), [(1015, OWN), (1100, IN_FLOAT32)])
def test_a_cache_in_float32_has_to_win_two_percent(own_us: float, place: Drafting) -> None:
    """Without drafts the engine's own choice wins a tie, as its default."""
    assert fastest(curves(own_us, 1000, 5)) == place
    choice = choose([trace("text")], Cost(curves=curves(own_us, 1000, 900)), LOOKUPS)
    assert choice.none.drafting == place


def test_what_is_traced_was_decoded_with_one_draft() -> None:
    """Outputs with drafts may part from those without: the former are replayed."""
    subject = structs.replace(tuned_subject(), engine="openvino")
    (run,) = trace_plan(subject, LOOKUPS, Drafting(threads=2)).runs
    assert (run.k, run.threads, run.kv_dtype) == (1, 2, "float32")
    assert run.kin == LOOKUPS[0]
    assert trace_plan(subject, (), Drafting(threads=2)).runs == (Drafting(threads=2),)
    assert trace_plan(tuned_subject(), LOOKUPS, OWN).runs == (OWN,)


def test_a_cache_that_was_not_measured_is_named() -> None:
    """T(N) of another cache is never taken for it."""
    own, precise = curves(1000, 1000, 5)
    assert curve_of([own, precise], IN_FLOAT32) is precise
    with pytest.raises(
        EvidenceError, match="1 threads, repacked, with a cache in float32, was not"
    ):
        curve_of([own], IN_FLOAT32)
