"""Replay where an engine's rows round each other: drafts that end early cost further steps."""

from dataclasses import dataclass
from pathlib import Path

import pytest
from conftest import write_payloads
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs
from nearfree.core.candidates import drafters
from nearfree.core.drafting import Drafting, Steps
from nearfree.derive.tune.curve import EngineCurve
from nearfree.derive.tune.plans import ROUNDING_K, trace_plan
from nearfree.derive.tune.replayed import (
    Cost,
    early_end_rates,
    more_steps,
    tokens_per_second,
    traces_of,
)
from nearfree.log.events import DraftsTraced
from nearfree.log.evidence import Take, read_take
from nearfree.log.names import Layout
from nearfree.log.take import take_name

from derive.tune.tuned import FLAT, SETTING, TOKENS, about, asked, available, decode

US = tuple(FLAT.values())
FLAT_CURVE = EngineCurve(
    setting=SETTING, timer="wall", n=tuple(FLAT), t_us=US, low_us=US, high_us=US
)
STEPS = Steps(rows=(9,) * 5, accepted=(8, 8, 0, 3, 8))


@given(st.floats(0, 0.99), st.floats(0, 0.99))
def test_more_ends_take_more_steps(one: float, other: float) -> None:
    """Without ends there are as many steps as replayed; the likelier an end, the more."""
    low, high = sorted((one, other))
    assert 1 == more_steps(STEPS, 0) <= more_steps(STEPS, low) <= more_steps(STEPS, high) + 1e-12
    assert more_steps(STEPS, high) <= 1 + sum(STEPS.accepted) / len(STEPS.accepted)
    assert more_steps(Steps(rows=(1, 1), accepted=(0, 0)), high) == 1


@dataclass
class Drafted:
    """A take of an engine that rounds: how many times the replayed steps copies took."""

    take: Take
    times: int


@pytest.fixture(params=[1, 2])
def drafted(tmp_path: Path, request: pytest.FixtureRequest) -> Drafted:
    """Seal traces with a drafted decode each; on held-out prompts it took ten times the steps."""
    layout = Layout(tmp_path)
    sources = drafters("openvino", "prompt_lookup")
    plan = trace_plan(structs.replace(asked(), engine="openvino"), sources, Drafting())
    none, run = plan.runs
    assert (none.drafter, run.k) == ("none", ROUNDING_K)
    payloads: list[object] = []
    for part in plan.prompts:
        offers = {source: available(part.kind, source) for source in plan.traced}
        payloads.append(decode(plan, part, none, seconds=TOKENS / 1000))
        payloads += [
            DraftsTraced(**about(plan, part), drafting=source, available=offer)
            for source, offer in offers.items()
        ]
        times = request.param if part.kind == "copying" else 1
        rows = (1 + ROUNDING_K,) * (times * 6 * (10 if part.held_out else 1))
        steps = Steps(rows=rows, accepted=(0,) * len(rows))
        changes = {"exact": False, "steps": steps}
        payloads.append(decode(plan, part, run, seconds=1.0, **changes))
    name = take_name("cpu", "openvino_tiny_trace", 1, plan)
    write_payloads(layout, name, plan, *payloads)
    return Drafted(read_take(layout, name), request.param)


def test_rates_are_those_of_the_tuned_prompts(drafted: Drafted) -> None:
    """With a kind's rate the replayed steps are as many as its drafted decodes took."""
    rates = early_end_rates([drafted.take])
    traces = [t for t in traces_of([drafted.take]) if t.kind == "copying" and not t.held_out]
    run = drafted.take.started.data.plan.runs[1]
    lists = [trace.steps(run) for trace in traces]
    expected = sum(len(steps.rows) * more_steps(steps, rates["copying"]) for steps in lists)
    assert expected == pytest.approx(6 * drafted.times * len(lists), rel=1e-4)
    assert expected > sum(len(steps.rows) for steps in lists)
    assert rates["text"] == 0  # its drafted decodes took fewer steps than the replayed ones


def test_a_kind_is_slower_by_its_own_ends(drafted: Drafted) -> None:
    """Tokens per second fall by the further steps of each kind, and not without drafts."""
    rates = early_end_rates([drafted.take])
    run = drafted.take.started.data.plan.runs[1]
    traces = traces_of([drafted.take])
    plain = Cost(curves=[FLAT_CURVE])
    ends = structs.replace(plain, early_ends=rates)
    for kind in ("copying", "text"):
        before, after = (tokens_per_second(traces, run, cost, kind) for cost in (plain, ends))
        assert (after < before) == (kind == "copying")
        none = [tokens_per_second(traces, Drafting(), cost, kind) for cost in (plain, ends)]
        assert none[0] == none[1]
