"""The paper's protocol: one N after the other, each warmed up once."""

import pytest
from conftest import make_plan
from msgspec.structs import replace
from nearfree.core.protocols import Paper
from nearfree.errors import HardwareError
from nearfree.log.names import Layout

from measure.machines import FakeKernel, measured, take

PROTOCOL = Paper(rounds=3, warmup=4, forwards=5)
PLAN = replace(make_plan(positions=(1, 4)), protocol=PROTOCOL)


def test_the_defaults_are_the_papers() -> None:
    """50 warm-ups, 10 rounds of 200 forwards, one buffer, launched one by one (app. C.1)."""
    paper = Paper()
    assert (paper.warmup, paper.rounds, paper.forwards) == (50, 10, 200)
    assert (paper.weight_copies, paper.launch, paper.retries) == (1, "eager", 0)


def test_one_n_after_the_other(layout: Layout) -> None:
    """All rounds of an N follow its warm-up before the next N begins."""
    kernel = FakeKernel()
    visits = measured(layout, take(layout, PLAN, kernel))
    assert kernel.calls == [1] * (4 + 15) + [4] * (4 + 15)
    assert [(v.n, v.round) for v in visits] == [(n, r) for n in (1, 4) for r in range(3)]
    assert {len(v.wall_us) for v in visits} == {5}


@pytest.mark.parametrize(("fails_at", "rounds_kept"), [(3, 0), (10, 1), (22, 3), (38, 5)])
def test_a_resumed_take_keeps_every_round(layout: Layout, fails_at: int, rounds_kept: int) -> None:
    """Each round is durable when it ends; the interrupted N is warmed up again."""
    with pytest.raises(HardwareError):
        take(layout, PLAN, FakeKernel(fails_at))
    kernel = FakeKernel()
    visits = measured(layout, take(layout, PLAN, kernel))
    assert [(v.n, v.round) for v in visits] == [(n, r) for n in (1, 4) for r in range(3)]
    warmed = len({(v.n) for v in visits[rounds_kept:]})
    assert len(kernel.calls) == (6 - rounds_kept) * 5 + warmed * 4
