"""What calls mean to a C++ rule, beyond the language."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Meaning:
    """What calls mean to a rule, beyond the language.

    Attributes
    ----------
    sinks
        Calls that are an answer: of `f<A<x, y>>()` with places (0, 1) the answer is y.
    answers
        Calls that are an answer: a tuple of the arguments at these places and of these
        expressions over names that are known there. A function with such a call answers nothing
        where it returns without one.
    records
        Names of structures that are handed on by reference; see `cpp_records`.
    tails
        Calls whose answer is the function's own.
    harmless
        Calls that change none of their arguments that a rule depends on.
    """

    sinks: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    answers: Mapping[str, tuple[int | str, ...]] = field(default_factory=dict)
    tails: frozenset[str] = frozenset()
    records: frozenset[str] = frozenset()
    harmless: frozenset[str] = frozenset()

    def ends(self, name: str) -> bool:
        """Return whether a call of that name gives the function's answer."""
        return name in self.sinks or name in self.answers or name in self.tails
