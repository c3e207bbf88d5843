"""Rules against binaries: recorded ones agree at every point, a planted difference is found."""

from functools import cache
from pathlib import Path

import pytest
from msgspec.structs import replace
from nearfree.errors import EvidenceError
from nearfree.log.events import BinaryListed
from nearfree.log.names import Layout
from nearfree.sources.backends.vllm_fa3 import WINDOW_KERNEL
from nearfree.sources.binaries.compare import (
    ELEMENTS,
    WIDTHS,
    WINDOW,
    Comparison,
    Difference,
    compare,
)
from nearfree.sources.binaries.record import recorded_listing
from nearfree.sources.language.rule import Rule

from sources.recorded import rules

LOG = Layout(Path(__file__).parents[3] / "results")
FA2, FA3 = "_vllm_fa2_C.abi3.so", "_vllm_fa3_C.abi3.so"
PAIRS = {
    **{("vllm", version, FA2): ("flash-attn", "2.7.2.post1") for version in ("0.9.1", "0.14.0")},
    **{("vllm", version, FA2): ("flash-attn", "2.8.3") for version in ("0.20.2", "0.33.0")},
    **{
        ("vllm", version, FA3): ("vllm-fa3", version)
        for version in ("0.9.1", "0.14.0", "0.20.2", "0.33.0")
    },
    ("sgl-kernel", "0.3.21", "flash_ops.abi3.so"): ("xformers", "0.0.34"),
    ("xformers", "0.0.34", "_C.so"): ("xformers", "0.0.34"),
}
"""Every binary on record, and the rules of the kernels that it holds."""
HOPPER = ("vllm", "0.20.2", FA3)
each_pair = pytest.mark.parametrize("pair", PAIRS, ids="-".join)


@cache
def listed(pair: tuple[str, str, str]) -> BinaryListed:
    """Return the recorded listing of a binary."""
    package, version, name = pair
    (listing,) = (
        candidate
        for candidate in recorded_listing(LOG, package, version)
        if candidate.member.path.endswith(f"/{name}")
    )
    return listing


@cache
def compared(pair: tuple[str, str, str]) -> Comparison:
    """Return the comparison of a recorded binary with its rules."""
    return compare(rules(*PAIRS[pair]), listed(pair).held)


def unexplained(comparison: Comparison) -> list[Difference]:
    """Return the differences that have no explanation."""
    return [difference for difference in comparison.differences if difference.explained is None]


@each_pair
def test_every_point_of_the_binaries_on_record_is_as_the_rules_say(
    pair: tuple[str, str, str],
) -> None:
    """Where a rule answers, the binary has the same rows; other points have an explanation."""
    comparison = compared(pair)
    assert comparison.points > 280
    assert unexplained(comparison) == []
    for difference in comparison.differences:
        reasons = {WIDTHS, WINDOW, ELEMENTS} & set(str(difference.explained).split("; "))
        assert reasons
        unread = difference.point.mask == "window" and WINDOW_KERNEL not in rules(*PAIRS[pair])
        assert (WINDOW in reasons) == unread
        assert (ELEMENTS in reasons) == (difference.point.dtype == "float8")
        assert (WIDTHS in reasons) == (difference.point.value_dim != difference.point.head_dim)


@pytest.mark.slow
@each_pair
def test_another_tile_in_a_binary_is_found(pair: tuple[str, str, str]) -> None:
    """A kernel with other rows is a difference at its point."""
    held = list(listed(pair).held)
    spoken = [
        place
        for place, kernel in enumerate(held)
        if kernel.mask != "window"
        and kernel.dtype != "float8"
        and kernel.head_dim == kernel.value_dim
        # Code that no device runs, such as Ampere's kernels compiled for Hopper, is no point.
        if kernel.code // 10 == {"fa3_sm80": 8, "fa3_sm90": 9}.get(kernel.kernel, kernel.code // 10)
    ]
    places = spoken[:: len(spoken) // 3]
    for place in places:
        held[place] = replace(held[place], rows=96)
    wrong = unexplained(compare(rules(*PAIRS[pair]), held))
    differences = [
        difference for difference in wrong if 96 in difference.binary and 96 not in difference.rule
    ]
    assert differences
    assert {
        (difference.point.kernel, difference.point.head_dim, difference.point.mask)
        for difference in differences
    } == {(held[place].kernel, held[place].head_dim, held[place].mask) for place in places}


def test_a_kernel_that_a_binary_lacks_is_found() -> None:
    """A point with a rule but no kernel is a difference without rows."""
    held = [kernel for kernel in listed(HOPPER).held if kernel.head_dim != 96 or not kernel.split]
    wrong = unexplained(compare(rules("vllm-fa3", "0.20.2"), held))
    assert {
        (difference.rule, difference.binary, difference.point.head_dim) for difference in wrong
    } == {((192,), (), 96)}
    assert all(difference.point.split for difference in wrong)


def test_rules_of_another_fork_are_found_wrong() -> None:
    """Xformers' rule lacks the tile for few rows that vLLM's binary has."""
    wrong = unexplained(compare(rules("xformers", "0.0.34"), listed(HOPPER).held))
    assert {
        (difference.point.head_dim, difference.rule, difference.binary) for difference in wrong
    } >= {
        (64, (192,), (64, 192)),
        (128, (128,), (64, 128)),
    }


def test_a_changed_rule_is_found() -> None:
    """A rule with another number of rows in one branch differs there."""
    known = rules("flash-attn", "2.8.3")
    tile = known["tile"].rule
    assert any(branch.value == "128" for branch in tile.branches)
    branches = [
        replace(branch, value="256") if "head_dim <= 32" in branch.when else branch
        for branch in tile.branches
    ]
    changed = known | {"tile": Rule(replace(tile, branches=tuple(branches)))}
    wrong = unexplained(compare(changed, listed(("vllm", "0.20.2", FA2)).held))
    assert {(difference.point.head_dim, difference.rule) for difference in wrong} == {(32, (256,))}


def test_rules_without_a_kernel_in_common_are_refused() -> None:
    """Rules and a binary without a common kernel are refused."""
    with pytest.raises(EvidenceError, match="no kernel that the binary holds"):
        compare(rules("flash-attn", "2.8.3"), listed(HOPPER).held)
    with pytest.raises(EvidenceError, match="choose no tile"):
        compare({}, listed(HOPPER).held)
