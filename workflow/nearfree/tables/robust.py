"""Whether a boundary is robust: what the tolerance and the noise of its ratios do to it.

Fragile is a boundary that moves by more than a step of its grid from one tolerance to the next, or
that at the headline tolerance is known less well than its protocol was to know it, or where the
interval of the ratio at N_max or at the next N holds the limit. Printed values have no ratios.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

Row = dict[str, Any]


class Robustness(NamedTuple):
    """The verdict, why, and the latencies that say so."""

    robust: bool
    why: str
    ids: tuple[str, ...]


def robustness(rows: Sequence[Row], points: Mapping[int, Row], epsilon: float) -> Robustness:
    """Return whether a boundary is robust over tolerances and noise.

    Parameters
    ----------
    rows
        The boundary at each tolerance, rising.
    points
        The latencies of its curve by N, none for a printed value.
    epsilon
        The headline tolerance; of those that there are, the nearest is taken.
    """
    headline = min(rows, key=lambda row: abs(row["epsilon"] - epsilon))
    around = [points[n] for n in (headline["n_max"], headline["next_n"]) if n in points]
    ids = tuple(point["row_id"] for point in around)
    found = [*_leaps(rows, points), *_noise(headline, around)]
    return Robustness(not found, "; ".join(found) or _steady(rows, headline, around), ids)


def leaps(before: Row, after: Row) -> bool:
    """Return whether N_max moves by more than a grid step from a tolerance to the next."""
    return bool(after["n_max"] > (before["next_n"] or before["n_max"]))


def _leaps(rows: Sequence[Row], points: Mapping[int, Row]) -> Iterator[str]:
    for a, b in pairwise(rows):
        if leaps(a, b):
            passed = [points[n] for n in (a["next_n"], b["n_max"]) if n in points]
            ratios = " and ".join(f"{_name(p)} is {p['ratio']:.3g}" for p in passed)
            yield (
                f"N_max moves from {a['n_max']} to {b['n_max']} between {a['epsilon']:.0%} and "
                f"{b['epsilon']:.0%}{': ' if ratios else ''}{ratios}"
            )


def _noise(headline: Row, around: Sequence[Row]) -> Iterator[str]:
    if headline["noisy"]:
        yield "its source marks it as noise"
    if headline["verdict"] == "undecided":
        yield (
            f"at {headline['epsilon']:.0%} N_max is known from {headline['n_low']} to "
            f"{headline['n_high']} alone, wider than its protocol was to leave it"
        )
    limit = 1 + headline["epsilon"]
    for point in around:
        low, high = point["ratio_low"], point["ratio_high"]
        if low <= limit < high:
            yield (
                f"{_name(point)} is {point['ratio']:.3g}, {low:.3g} to {high:.3g}, which holds the "
                f"limit {limit:.3g}"
            )


def _steady(rows: Sequence[Row], headline: Row, around: Sequence[Row]) -> str:
    first, last = rows[0], rows[-1]
    span = f"from {first['epsilon']:.0%} to {last['epsilon']:.0%}"
    if any(a["n_max"] != b["n_max"] for a, b in pairwise(rows)):
        text = f"N_max moves from {first['n_max']} to {last['n_max']} {span}, a grid step at a time"
    else:
        text = f"the same N {span}"
    if len(around) > 1:
        rise = around[1]["ratio"] / around[0]["ratio"] - 1
        return f"{text}: the step at N = {headline['next_n']} is {rise:+.0%}"
    return text if headline["next_n"] else f"{text}, the last of the grid"


def _name(point: Row) -> str:
    return f"T({point['n']})/T({point['baseline']})"
