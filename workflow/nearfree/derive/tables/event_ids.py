"""The events that the rows of a large table may name, without a text for each of them."""

from collections.abc import Iterable, Sequence

import numpy as np
import polars as pl

_AT_ONCE = 100_000


class EventIds:
    """The ids `segment#place` of many events, as places by segment.

    Parameters
    ----------
    every
        Segments, each with the places of some of its events; a segment may come several times.
    """

    def __init__(self, every: Iterable[tuple[str, Sequence[int]]]) -> None:
        found: dict[str, list[Sequence[int]]] = {}
        for segment, places in every:
            found.setdefault(segment, []).append(places)
        self._places = {segment: np.sort(np.concatenate(parts)) for segment, parts in found.items()}

    def absent(self, ids: pl.Series) -> pl.Series:
        """Return those of some ids that name none of these events."""
        parts = [self._absent(part) for part in ids.to_frame("id").iter_slices(_AT_ONCE)]
        return pl.concat(parts) if parts else ids.clear()

    def _absent(self, ids: pl.DataFrame) -> pl.Series:
        said = pl.col("id").str.splitn("#", 2)
        place = said.struct[1].cast(pl.Int64, strict=False)
        exact = place.cast(pl.String) == said.struct[1]
        named = ids.with_columns(
            said.struct[0].alias("segment"), pl.when(exact).then(place).alias("place")
        )
        frames = [
            part.filter(~self._holds(segment, part["place"]))
            for (segment,), part in named.group_by("segment", maintain_order=True)
        ]
        return pl.concat(frames)["id"]

    def _holds(self, segment: object, places: pl.Series) -> pl.Series:
        known = self._places.get(str(segment), np.array([], dtype=np.int64))
        return pl.Series(np.isin(places.fill_null(0).to_numpy(), known))
