"""The report's section on measured models and their modules: misses of the minimum, LM head."""

from collections.abc import Mapping

import polars as pl
from msgspec import Struct

from nearfree.core.label import label
from nearfree.decoders.modules import BETWEEN, HEAD
from nearfree.show.page.models import ORDER, SETTING, measured, number, ways
from nearfree.show.page.sections import Cell, Grid, Row, cell

_MINIMUM = "modules_minimum"
"""The predictor that is explained where it misses."""


def missed(composition: pl.DataFrame) -> tuple[Cell, ...]:
    """Return a sentence for each setting at which the minimum of modules' boundaries misses.

    Parameters
    ----------
    composition
        Rows of that table at one tolerance; what is refused is not told.
    """
    rows = composition.filter(~pl.col("hit"), predictor=_MINIMUM).drop_nulls("predicted")
    return tuple(cell(_sentence(row), row["row_id"]) for row in rows.sort(ORDER).to_dicts())


def _sentence(row: Row) -> str:
    at = number(row["predicted"])
    named = f"{label(row, SETTING)}: the minimum names {row['limiter']} at N = {at}"
    if row["limiter_share"] is not None:
        named += f", which takes {row['limiter_share']:.0%} of T(N = {row['baseline']})"
    loosely = " (undecided)" if row["undecided"] else ""
    return f"{named}; {row['origin']} was N_max = {row['n_max']}{loosely}{_grown(row)}."


def _grown(row: Row) -> str:
    if row["measured_limiter"] is None:
        return ""
    name = "the same module" if row["same_limiter"] else row["measured_limiter"]
    growth = row["measured_growth"]
    part = "" if growth is None else f", by {growth:.0%} of what all grew by"
    return f", and {name} grew most{part}"


def beside(time_shares: pl.DataFrame) -> Grid:
    """Return what the LM head, and what lies between modules, take of T(baseline) in each model.

    Parameters
    ----------
    time_shares
        Rows of that table of one platform.
    """
    at = time_shares.filter("newest", pl.col("n") == pl.col("baseline")).sort(*ORDER, "place")
    rows = []
    for (model,), group in at.group_by("model", maintain_order=True):
        cells = []
        for role in (HEAD, BETWEEN):
            taken = group.filter(role=role).sort("share", maintain_order=True).to_dicts()
            cells += [_share(row) for row in (taken[0], taken[-1])] if taken else [Cell("-")] * 2
        rows.append((Cell(str(model)), Cell(str(group["setting_key"].n_unique())), *cells))
    named = (HEAD, f"{BETWEEN} modules")
    ends = tuple(f"{name}, {end}" for name in named for end in ("least", "most"))
    return Grid(("model", "settings", *ends), tuple(rows))


def _share(row: Row) -> Cell:
    return cell(f"{row['share']:.1%}", row["row_id"])


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
    composition = frames["composition"].filter(epsilon=epsilon)
    return ModelSection(
        answer=measured(at, composition),
        ways=ways(frames["scores"].filter(epsilon=epsilon, module="model")),
        missed=missed(composition),
        beside=beside(frames["time_shares"]),
    )
