"""Robustness of a boundary against the tolerance and the noise of its ratios.

A boundary is fragile in three cases: it moves by more than a step of its grid from one tolerance to
the next; its interval at the headline tolerance is wider than its protocol required; or the
interval of the ratio at N_max or at the next N contains the limit. Printed values have no ratios.
The text states what cannot be judged: noise without intervals, and N beyond the end of a grid.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

Row = dict[str, Any]


class Robustness(NamedTuple):
    """The verdict, its reason, and the row ids of the latencies behind it."""

    robust: bool
    why: str
    ids: tuple[str, ...]


def robustness(rows: Sequence[Row], points: Mapping[int, Row], epsilon: float) -> Robustness:
    """Return whether a boundary is robust over tolerances and noise.

    Parameters
    ----------
    rows
        The boundary at each tolerance, in ascending order.
    points
        The latencies of its curve by N, none for a printed value.
    epsilon
        The headline tolerance; the nearest one with a row counts.
    """
    headline = min(rows, key=lambda row: abs(row["epsilon"] - epsilon))
    neighbours = [points[n] for n in (headline["n_max"], headline["next_n"]) if n in points]
    ids = tuple(point["row_id"] for point in neighbours)
    findings = [*_leaps(rows, points), *_noise(headline, neighbours)]
    sentences = [
        *(findings or [_steady(rows, headline, neighbours)]),
        *_unjudged(headline, robust=not findings),
    ]
    return Robustness(not findings, "; ".join(sentences), ids)


def leaps(before: Row, after: Row) -> bool:
    """Return whether N_max moves by more than a grid step from one tolerance to the next."""
    return bool(after["n_max"] > (before["next_n"] or before["n_max"]))


def _leaps(rows: Sequence[Row], points: Mapping[int, Row]) -> Iterator[str]:
    for lower, higher in pairwise(rows):
        if leaps(lower, higher):
            passed = [points[n] for n in (lower["next_n"], higher["n_max"]) if n in points]
            ratios = " and ".join(
                f"{_ratio_name(point)} is {point['ratio']:.3g}" for point in passed
            )
            yield (
                f"N_max moves from {lower['n_max']} to {higher['n_max']} between "
                f"{lower['epsilon']:.0%} and {higher['epsilon']:.0%}"
                + (f": {ratios}" if ratios else "")
            )


def _noise(headline: Row, neighbours: Sequence[Row]) -> Iterator[str]:
    if headline["noisy"]:
        yield "the paper marks it as noise"
    if headline["verdict"] == "undecided":
        yield (
            f"at {headline['epsilon']:.0%} its interval, {headline['n_low']} to "
            f"{headline['n_high']}, is wider than the protocol allows"
        )
    limit = 1 + headline["epsilon"]
    for point in neighbours:
        low, high = point["ratio_low"], point["ratio_high"]
        if low <= limit < high:
            yield (
                f"{_ratio_name(point)} is {point['ratio']:.3g}, whose interval, {low:.3g} to "
                f"{high:.3g}, contains the limit {limit:.3g}"
            )


def _steady(rows: Sequence[Row], headline: Row, neighbours: Sequence[Row]) -> str:
    text = _moves([pair for pair in pairwise(rows) if pair[0]["n_max"] != pair[1]["n_max"]])
    text = text or f"the same N from {rows[0]['epsilon']:.0%} to {rows[-1]['epsilon']:.0%}"
    if len(neighbours) > 1:
        rise = neighbours[1]["ratio"] / neighbours[0]["ratio"] - 1
        text += f"; the step at N = {headline['next_n']} is {rise:+.0%}"
    return text


def _moves(moves: Sequence[tuple[Row, Row]]) -> str:
    """Return a text on the largest move of N_max from one tolerance to the next."""
    if not moves:
        return ""
    lower, higher = max(moves, key=lambda move: move[1]["n_max"] / move[0]["n_max"])
    tolerances = f"between {lower['epsilon']:.0%} and {higher['epsilon']:.0%}"
    text = f"{lower['n_max']} to {higher['n_max']}, {tolerances}"
    if len(moves) == 1:
        return f"N_max moves by a grid step, from {text}"
    return f"N_max moves {len(moves)} times, a grid step each, the largest from {text}"


def _unjudged(headline: Row, *, robust: bool) -> Iterator[str]:
    if headline["next_n"] is None:
        yield f"the grid ends there: N_max is at least {headline['n_max']}"
    if robust and headline["verdict"] == "printed":
        yield "no intervals are printed, so noise is not judged"


def _ratio_name(point: Row) -> str:
    return f"T({point['n']})/T({point['baseline']})"
