"""What a platform's part of the report says of the whole models that were measured there."""

from collections.abc import Mapping

import polars as pl
from msgspec import Struct

from nearfree.report.model_modules import beside, missed
from nearfree.report.models import Backing, measured, ways
from nearfree.report.sections import Cell, Grid


class ModelSection(Struct, frozen=True, kw_only=True):
    """The section's tables and sentences, and the rows behind its counts."""

    answer: Grid
    ways: Grid
    missed: tuple[Cell, ...]
    beside: Grid
    backing: Backing


def model_section(
    frames: Mapping[str, pl.DataFrame], scope: str, epsilon: float
) -> ModelSection | None:
    """Return the section of a platform, None where it measured no model.

    Parameters
    ----------
    frames
        That platform's tables by name: boundaries, composition and time_shares among them.
    scope
        The platform.
    epsilon
        The tolerance that is reported.
    """
    at = frames["boundaries"].filter("newest", epsilon=epsilon, module="model")
    if at.is_empty():
        return None
    said = frames["composition"].filter(epsilon=epsilon)
    counts, counted = ways(said, scope)
    shares, shared = beside(frames["time_shares"], scope)
    return ModelSection(
        answer=measured(at, said),
        ways=counts,
        missed=missed(said),
        beside=shares,
        backing=[*counted, *shared],
    )
