"""Query tiles at many points at once: calls that differ in nothing but batch, context and N.

Points at which a release's rules say the same are told from all others in one go, and one of each
kind is asked as a single point is. Where that is not possible, each point is asked.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import replace
from numpy.typing import NDArray

from nearfree.errors import NearfreeError
from nearfree.sources.answers.granularity import MOST_POINTS
from nearfree.sources.attention import VARYING, AttentionQuery, Point, Tile, room, stated_facts
from nearfree.sources.language.closures import NO_VALUE
from nearfree.sources.language.points import column, combined, kinds, told_apart
from nearfree.sources.language.rule import Rule
from nearfree.sources.packages import PackageReader

Whole = NDArray[np.int64]
LARGEST = 1 << 31
"""No batch, context or N is larger where many points are asked at once."""


class Call(Struct, frozen=True, kw_only=True):
    """One attention call of a release: its reader and its rules."""

    module: PackageReader
    rules: dict[str, Rule]
    query: AttentionQuery

    def tile(self, context: int, positions: int) -> Tile:
        """Return the tile of N positions over a context."""
        query = replace(self.query, context=self._room(context + positions))
        return self.module.tile(self.rules, query, positions)

    def kinds(
        self, batch: Whole, context: Whole, positions: Whole
    ) -> tuple[Whole, list[Tile | None]]:
        """Return which kind each point is of, and the tile of each kind.

        The tile is None where each point must be asked alone; its `tiles` are those of one point.
        """
        try:
            point = Point(positions, batch, self._room(context + positions))
            codes, some = self._codes(point)
        except (*NO_VALUE, NearfreeError):
            return np.zeros(len(positions), np.int64), [None]
        return codes, [self._one(*(int(each[place]) for each in point)) for place in some]

    def _room(self, keys: Any) -> Any:
        return room(keys, self.query.page_size)

    def _one(self, positions: int, batch: int, context: int) -> Tile | None:
        query = replace(self.query, batch=batch, context=context)
        try:
            return self.module.tile(self.rules, query, positions)
        except NearfreeError:
            return None

    def _codes(self, point: Point) -> tuple[Whole, Whole]:
        """Return codes of what tile, path and rows of a position rest on, and a point of each."""
        if any(each.min() < 0 or each.max() > LARGEST for each in point):
            raise OverflowError
        if not 1 <= point.positions.min() <= point.positions.max() <= MOST_POINTS:
            raise OverflowError
        captured = self.query.capture_positions
        if captured is not None and point.positions.max() > captured:
            raise OverflowError
        queries = self.module.rule_queries(self.query, point)
        found = [_answer_codes(self.rules[name], facts) for name, facts in queries]
        for name, given in self.module.FOLLOWING_RULES.items():
            also = self.rules[name].open_inputs & set(Point._fields) if name in self.rules else ()
            columns = {each: column(getattr(point, each)) for each in sorted(also)}
            plain = {each: queries[0].facts[each] for each in given if each not in columns}
            found += told_apart(self.rules[name], plain, columns) if columns else ()
        return combined([(np.zeros(len(point.positions), np.int64), 1), *found])


def _answer_codes(rule: Rule, facts: Mapping[str, Any]) -> tuple[Whole, int]:
    """Return what a rule says at each point, as codes that tell answers apart, and their number."""
    whole = {name: each for name, each in facts.items() if isinstance(each, np.ndarray)}
    plain = stated_facts({name: each for name, each in facts.items() if name not in whole})
    needed = {name: column(each) for name, each in whole.items() if name in rule.open_inputs}
    if not needed:
        return np.zeros(len(next(iter(whole.values()))), np.int64), 1
    return kinds(rule.steady(plain, VARYING), plain, needed)
