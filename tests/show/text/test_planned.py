"""The schedule that is safe at several contexts."""

from typing import Any

from nearfree.show.text.planned import Planned, shortest


def planned(context: int, *ks: int) -> Planned:
    """Return what is near-free at one context, for one request."""
    forecast: Any = None
    return Planned(context=context, asked=(), answers=forecast, near_free={1: frozenset(ks)})


def test_the_safe_length_is_near_free_at_each_context() -> None:
    """The longest K of one context may leave the tolerance at another, whose longest is longer."""
    found = shortest([planned(512, 0, 1, 2, 5), planned(4096, 0, 1, 2, 3, 4)], 0.0)
    assert {batch: choice.k for batch, choice in found.choices.items()} == {1: 2}
