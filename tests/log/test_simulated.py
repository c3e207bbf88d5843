"""Simulated takes are recognised by their plans and kept apart from real ones."""

import pytest
from conftest import make_latency, make_plan, write_take
from derive.tables.logs import write_probe
from msgspec.structs import replace
from nearfree.core.plan import ProfilePlan, RetractPlan
from nearfree.errors import EvidenceError
from nearfree.log.evidence import is_simulated, refuse_mixed, simulated
from nearfree.log.names import Layout
from nearfree.log.segment import SegmentWriter
from nearfree.log.take import take_name

SIMULATED = replace(make_plan(), curves="0" * 64)


def test_the_plan_tells(layout: Layout) -> None:
    """A take is simulated if its plan names a curve file; a retraction is of no device."""
    profile = ProfilePlan(sweeps=make_plan().sweeps, environment="cpu")
    real, profiled, other, none = (
        write_take(layout, stream=stream, plan=plan, work=work).name
        for stream, plan, work in (
            ("real", make_plan(), lambda _: None),
            ("profiled", profile, lambda _: None),
            ("other", SIMULATED, lambda _: None),
            ("retracted", RetractPlan(target="cpu/real/1-00000000", reason="x"), lambda _: None),
        )
    )
    takes = (real, profiled, other, none)
    assert [is_simulated(layout, take) for take in takes] == [False, False, True, None]


def test_an_empty_root_takes_either(layout: Layout) -> None:
    """Before the first take nothing is refused."""
    refuse_mixed(layout, as_simulated=True)
    refuse_mixed(layout, as_simulated=False)
    assert simulated(layout, "cpu") is None


@pytest.mark.parametrize("there", [True, False])
def test_a_root_is_of_one_kind(layout: Layout, there: bool) -> None:  # noqa: FBT001
    """What is of the other kind is refused, whichever platform it is of, with a way out."""
    write_take(layout, scope="h20", plan=SIMULATED if there else make_plan())
    refuse_mixed(layout, as_simulated=there)
    present, new = ("simulated", "measured") if there else ("measured", "simulated")
    message = f"holds {present} takes of h20: what is {new} stays apart"
    with pytest.raises(EvidenceError, match=message) as error:
        refuse_mixed(layout, as_simulated=not there)
    assert "--results" in error.value.remedy


def test_one_take_of_each_platform_is_looked_at(layout: Layout) -> None:
    """A root that became mixed by hand is refused for both kinds."""
    write_probe(layout, "cpu")
    write_take(layout, scope="h20", plan=SIMULATED)
    for kind in (True, False):
        with pytest.raises(EvidenceError, match="stays apart"):
            refuse_mixed(layout, as_simulated=kind)


def test_damage_elsewhere_is_not_in_the_way(layout: Layout) -> None:
    """A take that cannot be read is ignored here; `verify` reports it."""
    name = write_take(layout, scope="h20", plan=SIMULATED).name
    layout.segment(name, 1).write_bytes(b"no event\n")
    assert simulated(layout, "h20") is None
    layout.segment(name, 1).unlink()
    assert simulated(layout, "h20") is None


def test_an_attempt_that_starts_with_another_event_is_skipped(layout: Layout) -> None:
    """Only the start of a run says whether a take is simulated, not the first event of any type."""
    name = take_name("h20", "dense", 1, SIMULATED)
    with SegmentWriter(layout, name, 1) as writer:
        writer.append(make_latency())
    write_take(layout, scope="h20", plan=SIMULATED)
    assert layout.attempts(name) == [1, 2]
    assert is_simulated(layout, name) is True
    layout.segment(name, 2).unlink()
    assert is_simulated(layout, name) is None


def test_a_take_of_no_device_does_not_decide(layout: Layout) -> None:
    """Of a scope's takes the first one that used a device tells whether it is simulated."""
    plan = RetractPlan(target="h20/dense/1-00000000", reason="x")
    write_take(layout, scope="h20", stream="a_retraction", plan=plan, work=lambda _: None)
    write_take(layout, scope="h20", plan=SIMULATED)
    assert simulated(layout, "h20") is True


def test_an_attempt_that_wrote_nothing_hides_nothing(layout: Layout) -> None:
    """An empty segment, left by a kill before the first line, is skipped."""
    name = take_name("h20", "dense", 1, SIMULATED)
    empty = layout.segment(name, 1)
    empty.parent.mkdir(parents=True)
    empty.touch()
    write_take(layout, scope="h20", plan=SIMULATED)
    assert layout.attempts(name) == [1, 2]
    assert is_simulated(layout, name) is True
