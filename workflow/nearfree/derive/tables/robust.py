"""Whether a boundary is robust: what the tolerance and the noise of its ratios do to it.

Fragile is a boundary that moves by more than a step of its grid from one tolerance to the next, or
that at the headline tolerance is known less well than its protocol was to know it, or where the
interval of the ratio at N_max or at the next N contains the limit. Printed values have no ratios.
What cannot be judged, noise without intervals or what lies behind the end of a grid, is said.
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
    findings = [*_leaps(rows, points), *_noise(headline, around)]
    sentences = [
        *(findings or [_steady(rows, headline, around)]),
        *_unjudged(headline, robust=not findings),
    ]
    return Robustness(not findings, "; ".join(sentences), ids)


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
        yield "the paper marks it as noise"
    if headline["verdict"] == "undecided":
        yield (
            f"at {headline['epsilon']:.0%} its interval, {headline['n_low']} to "
            f"{headline['n_high']}, is wider than the protocol allows"
        )
    limit = 1 + headline["epsilon"]
    for point in around:
        low, high = point["ratio_low"], point["ratio_high"]
        if low <= limit < high:
            yield (
                f"{_name(point)} is {point['ratio']:.3g}, whose interval, {low:.3g} to {high:.3g}, "
                f"contains the limit {limit:.3g}"
            )


def _steady(rows: Sequence[Row], headline: Row, around: Sequence[Row]) -> str:
    text = _moves([(a, b) for a, b in pairwise(rows) if a["n_max"] != b["n_max"]])
    text = text or f"the same N from {rows[0]['epsilon']:.0%} to {rows[-1]['epsilon']:.0%}"
    if len(around) > 1:
        rise = around[1]["ratio"] / around[0]["ratio"] - 1
        text += f"; the step at N = {headline['next_n']} is {rise:+.0%}"
    return text


def _moves(moves: Sequence[tuple[Row, Row]]) -> str:
    """Return the largest step that N_max takes from one tolerance to the next."""
    if not moves:
        return ""
    a, b = max(moves, key=lambda move: move[1]["n_max"] / move[0]["n_max"])
    text = f"{a['n_max']} to {b['n_max']}, between {a['epsilon']:.0%} and {b['epsilon']:.0%}"
    if len(moves) == 1:
        return f"N_max moves by a grid step, from {text}"
    return f"N_max moves {len(moves)} times, a grid step each, the largest from {text}"


def _unjudged(headline: Row, *, robust: bool) -> Iterator[str]:
    if headline["next_n"] is None:
        yield f"the grid ends there: N_max is at least {headline['n_max']}"
    if robust and headline["verdict"] == "printed":
        yield "no intervals are printed, so noise is not judged"


def _name(point: Row) -> str:
    return f"T({point['n']})/T({point['baseline']})"
