"""How boundaries compare, as rules over any numbers."""

from hypothesis import given
from hypothesis import strategies as st
from nearfree.derive.claims.cases import at_floor, at_least, reach, same, within_step

from derive.claims.logs import Row, at

POWERS = [2**n for n in range(12)]


def on_grid(limit: float) -> Row:
    """Return the boundary of a limit on a grid of powers of two, as it is printed."""
    n = max(power for power in POWERS if power <= max(limit, 1))
    return at("dense_ffn", n, 2 * n if n < POWERS[-1] else None)


@st.composite
def bounds(draw: st.DrawFn) -> Row:
    """Draw a boundary on a grid of powers of two, with or without an interval around it."""
    place = draw(st.integers(0, len(POWERS) - 1))
    low, high = draw(st.integers(0, place)), draw(st.integers(place, len(POWERS) - 1))
    following = POWERS[place + 1] if place + 1 < len(POWERS) else None
    interval = draw(st.sampled_from([(), (POWERS[low], POWERS[high])]))
    return at("dense_ffn", POWERS[place], following, interval=interval)


@given(st.floats(1, 1000), st.integers(1, 64), st.integers(1, 64))
def test_an_exact_law_is_never_judged_broken(limit: float, b: int, other: int) -> None:
    """Boundaries of an exact law c / b compare as equal or as undecided."""
    assert same(on_grid(limit / b), on_grid(limit / other), (b, other)) is not False


@given(bounds(), bounds())
def test_comparing_is_symmetric(a: Row, b: Row) -> None:
    """It does not matter which of two boundaries comes first."""
    assert same(a, b) == same(b, a)


@given(bounds(), bounds())
def test_of_two_boundaries_one_is_no_smaller(a: Row, b: Row) -> None:
    """Of two boundaries at most one is judged smaller."""
    assert at_least(a, b) is not False or at_least(b, a) is not False


@given(bounds(), st.floats(0.1, 5000))
def test_a_prediction_lands_where_the_boundary_lies(row: Row, value: float) -> None:
    """A prediction hits between N_max and the next N only, and misses only outside the interval."""
    low, high = row["n_low"] or row["n_max"], row["n_high"] or row["n_max"]
    inside = row["n_max"] <= value < reach(row)[1]
    case = within_step(row, value)
    assert not case or inside
    assert case is not False or not (inside or (row["n_low"] and low <= value <= high))


@given(st.integers(0, 11), st.integers(0, 11))
def test_at_the_floor_boundaries_do_not_compare(n: int, other: int) -> None:
    """Where neither boundary has a near-free N, the comparison is undecided."""
    a, b = (at("dense_ffn", POWERS[n_max], 2 * POWERS[n_max]) for n_max in (n, other))
    floor = at_floor(a) and at_floor(b)
    assert (same(a, b) is None) == floor
    assert (at_least(a, b) is None) == floor
