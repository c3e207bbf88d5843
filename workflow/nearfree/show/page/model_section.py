"""What a platform's part of the report says of the whole models that were measured there."""

from collections.abc import Mapping

import polars as pl
from msgspec import Struct

from nearfree.show.page.model_modules import beside, missed
from nearfree.show.page.models import measured, ways
from nearfree.show.page.sections import Cell, Grid


class ModelSection(Struct, frozen=True, kw_only=True):
    """The section's tables and sentences."""

    answer: Grid
    ways: Grid
    missed: tuple[Cell, ...]
    beside: Grid


def model_section(frames: Mapping[str, pl.DataFrame], epsilon: float) -> ModelSection | None:
    """Return the section of a platform, None where it measured no model.

    Parameters
    ----------
    frames
        A platform's tables by name: boundaries, composition, time_shares and scores among them.
    epsilon
        The tolerance that is reported.
    """
    at = frames["boundaries"].filter("newest", epsilon=epsilon, module="model")
    if at.is_empty():
        return None
    said = frames["composition"].filter(epsilon=epsilon)
    return ModelSection(
        answer=measured(at, said),
        ways=ways(frames["scores"].filter(epsilon=epsilon, module="model")),
        missed=missed(said),
        beside=beside(frames["time_shares"]),
    )
