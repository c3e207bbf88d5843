"""The interleaved protocol: what a round holds, and what a resumed take still does."""

import pytest
from conftest import make_plan, make_setting
from msgspec.structs import replace
from nearfree.core.protocols import Interleaved, Thinned
from nearfree.errors import HardwareError
from nearfree.log.names import Layout
from nearfree.measure.protocols import rounds

from measure.machines import FakeKernel, measured, points, take

PROTOCOL = Interleaved(rounds=3, warmup=2, forwards=3, retries=2)
PLAN = replace(make_plan(positions=(1, 2, 4)), protocol=PROTOCOL)


def test_the_order_differs_and_is_reproducible() -> None:
    """Each round visits every point once, in an order that depends on the seed."""
    (sweep,) = PLAN.sweeps
    other = replace(sweep, setting=make_setting(batch=2))
    every = points(replace(PLAN, sweeps=(sweep, other)), FakeKernel())
    many = replace(PROTOCOL, rounds=8)
    first = [order for _, order in rounds(every, many, 0)]
    assert all(len(order) == 6 and all(p in order for p in every) for order in first)
    assert len({tuple(every.index(p) for p in order) for order in first}) > 4
    assert [order for _, order in rounds(every, many, 0)] == first
    assert [order for _, order in rounds(every, replace(many, seed=1), 0)] != first


def test_a_resumed_take_keeps_its_orders() -> None:
    """A round has the same order whether or not the rounds before it are still to do."""
    every = points(PLAN, FakeKernel())
    assert list(rounds(every, PROTOCOL, 2)) == list(rounds(every, PROTOCOL, 0))[2:]
    assert list(rounds(every, PROTOCOL, 3)) == []


def test_a_take_holds_every_point_of_every_round(layout: Layout) -> None:
    """Each round has one event a point, with its place in the order."""
    visits = measured(layout, take(layout, PLAN, FakeKernel()))
    assert sorted((v.round, v.n) for v in visits) == [(r, n) for r in range(3) for n in (1, 2, 4)]
    assert [v.order for v in visits] == [0, 1, 2] * 3
    assert not any(v.paired for v in visits)


@pytest.mark.parametrize(("fails_at", "left"), [(1, 3), (18, 2), (32, 1), (45, 1)])
def test_a_resumed_take_does_only_what_is_missing(layout: Layout, fails_at: int, left: int) -> None:
    """After a failure complete rounds are kept, and only the others are measured again."""
    with pytest.raises(HardwareError, match="fell over"):
        take(layout, PLAN, FakeKernel(fails_at))
    kernel = FakeKernel()
    seal = take(layout, PLAN, kernel)
    assert len(kernel.calls) == left * 3 * 5
    visits = measured(layout, seal)
    assert sorted((v.round, v.n) for v in visits) == [(r, n) for r in range(3) for n in (1, 2, 4)]
    assert [part.attempt for part in seal.segments] == [1, 2]


THINNED = replace(PLAN, protocol=Thinned(rounds=4, warmup=2, forwards=3, retries=2, often_to=2))
VISITED = [(0, 1), (0, 2), (0, 4), (1, 1), (1, 2), (2, 1), (2, 2), (2, 4), (3, 1), (3, 2)]


def test_thinned_rounds_leave_large_n_out(layout: Layout) -> None:
    """N beyond `often_to` is in fewer rounds; each round records its number of points."""
    visits = measured(layout, take(layout, THINNED, FakeKernel()))
    assert sorted((v.round, v.n) for v in visits) == VISITED
    assert [v.round_points for v in visits] == [3] * 3 + [2] * 2 + [3] * 3 + [2] * 2


@pytest.mark.parametrize("fails_at", [18, 27, 40, 47])
def test_thinned_rounds_are_gone_on_with(layout: Layout, fails_at: int) -> None:
    """After a failure a take goes on with the points of the round that was cut short."""
    with pytest.raises(HardwareError, match="fell over"):
        take(layout, THINNED, FakeKernel(fails_at))
    visits = measured(layout, take(layout, THINNED, FakeKernel()))
    assert sorted((v.round, v.n) for v in visits) == VISITED
