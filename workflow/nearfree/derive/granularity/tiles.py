"""Query tiles at many points at once, for calls that differ only in batch, context and N.

The points are grouped into kinds on which a release's rules give the same answers, by array
operations. The tile of one representative then holds for its kind. Where grouping fails, the caller
resolves each point by itself.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from nearfree.errors import NearfreeError
from nearfree.sources.answers.granularity import MOST_POINTS
from nearfree.sources.attention import (
    VARYING,
    AttentionQuery,
    Point,
    Tile,
    cache_capacity,
    stated_facts,
)
from nearfree.sources.language.closures import NO_VALUE
from nearfree.sources.language.points import (
    answer_codes,
    column,
    combined_codes,
    distinguishing_codes,
)
from nearfree.sources.language.rule import Rule
from nearfree.sources.packages import PackageReader

Integers = NDArray[np.int64]
LARGEST = 1 << 31
"""Largest batch, context or N that is grouped."""


class Call(Struct, frozen=True, kw_only=True):
    """One attention call of a release: its reader and its rules."""

    module: PackageReader
    rules: dict[str, Rule]
    query: AttentionQuery

    def tile(self, context: int, positions: int) -> Tile:
        """Return the tile of N positions over `context` cached ones."""
        query = replace(self.query, context=self._cache_positions(context + positions))
        return self.module.tile(self.rules, query, positions)

    def kinds(
        self, batch: Integers, context: Integers, positions: Integers
    ) -> tuple[Integers, list[Tile | None]]:
        """Return the index of each point's kind, and the tile of each kind.

        The tile is None where the points of a kind must be resolved one by one. Its count `tiles`
        is that of the representative only.
        """
        try:
            point = Point(positions, batch, self._cache_positions(context + positions))
            codes, representatives = self._codes(point)
        except (*NO_VALUE, NearfreeError):
            return np.zeros(len(positions), np.int64), [None]
        tiles = [self._tile_at(*(int(values[at]) for values in point)) for at in representatives]
        return codes, tiles

    def _cache_positions(self, keys: Any) -> Any:
        return cache_capacity(keys, self.query.page_size)

    def _tile_at(self, positions: int, batch: int, context: int) -> Tile | None:
        query = replace(self.query, batch=batch, context=context)
        try:
            return self.module.tile(self.rules, query, positions)
        except NearfreeError:
            return None

    def _codes(self, point: Point) -> tuple[Integers, Integers]:
        """Return a code per point for the answers behind its tile, and one point of each code."""
        if any(values.min() < 0 or values.max() > LARGEST for values in point):
            raise OverflowError
        if not 1 <= point.positions.min() <= point.positions.max() <= MOST_POINTS:
            raise OverflowError
        captured = self.query.capture_positions
        if captured is not None and point.positions.max() > captured:
            raise OverflowError
        queries = self.module.rule_queries(self.query, point)
        codes = [_answer_codes(self.rules[name], facts) for name, facts in queries]
        for name, rule_inputs in self.module.FOLLOWING_RULES.items():
            varying = (
                self.rules[name].open_inputs & set(Point._fields) if name in self.rules else ()
            )
            variables = {field: column(getattr(point, field)) for field in sorted(varying)}
            constants = {
                field: queries[0].facts[field] for field in rule_inputs if field not in variables
            }
            codes += (
                distinguishing_codes(self.rules[name], constants, variables) if variables else ()
            )
        return combined_codes([(np.zeros(len(point.positions), np.int64), 1), *codes])


def _answer_codes(rule: Rule, facts: Mapping[str, Any]) -> tuple[Integers, int]:
    """Return a code of a rule's answer at each point, and the number of distinct codes."""
    arrays = {name: value for name, value in facts.items() if isinstance(value, np.ndarray)}
    constants = stated_facts({name: value for name, value in facts.items() if name not in arrays})
    variables = {name: column(value) for name, value in arrays.items() if name in rule.open_inputs}
    if not variables:
        return np.zeros(len(next(iter(arrays.values()))), np.int64), 1
    return answer_codes(rule.narrowed(constants, VARYING), constants, variables)
