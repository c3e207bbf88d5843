"""The open branches of a rule as closures: which one applies at some inputs, and its value."""

import ast
from collections.abc import Mapping, Sequence
from typing import Any

from nearfree.log.events import Branch
from nearfree.sources.language.closures import Closures, Run, UnsettledError

Parsed = tuple[Branch, list[ast.expr], ast.expr]
"""A branch, its conditions and its value; branches share the trees of conditions."""


class Branches:
    """Branches that are asked at many inputs.

    Parameters
    ----------
    branches
        The branches.
    closures
        What turns their conditions and values into closures.

    Raises
    ------
    UnsettledError
        They have a part that is only evaluated the slow way.
    """

    def __init__(self, branches: Sequence[Parsed], closures: Closures) -> None:
        places: dict[ast.expr, int] = {}
        self._branches: list[tuple[Branch, list[int], Run]] = []
        for branch, when, value in branches:
            used = [places.setdefault(each, len(places)) for each in when]
            self._branches.append((branch, used, closures.of(value)))
        self._conditions = [closures.of(each) for each in places]

    def value(self, inputs: Mapping[str, Any]) -> tuple[Any, Branch]:
        """Return the value at some inputs, and the one branch that applies.

        Raises
        ------
        UnsettledError, or what a mistake in a rule raises (`NO_VALUE`)
            No branch applies, or more than one, or there is no plain value.
        """
        held: list[bool | None] = [None] * len(self._conditions)
        found: tuple[Any, Branch] | None = None
        for branch, when, value in self._branches:
            for place in when:
                holds = held[place]
                if holds is None:
                    holds = held[place] = bool(self._conditions[place](inputs))
                if not holds:
                    break
            else:
                if found is not None:
                    raise UnsettledError
                found = value(inputs), branch
        if found is None:
            raise UnsettledError
        return found
