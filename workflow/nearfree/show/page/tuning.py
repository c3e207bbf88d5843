"""The report's section on tuning: measured gains of an engine's drafts, and what to run."""

import polars as pl
from msgspec import Struct

from nearfree.config.prompts import ALL
from nearfree.show.figures.tuning import PROOF, decoded
from nearfree.show.page.sections import Cell, Column, Grid, Row, backed, cell, grid
from nearfree.show.text.tune import NOT_SPECULATING

_VERDICTS = {"speculate": "speculate: it beat none by more than the noise", **NOT_SPECULATING}


class TuningSection(Struct, frozen=True, kw_only=True):
    """The section's sentences and tables."""

    verdicts: tuple[Cell, ...]
    settings: Grid
    """The settings that ran, on all prompts."""
    kinds: Grid
    """The same, by kind of prompts."""


def tuning_section(tuning: pl.DataFrame) -> TuningSection | None:
    """Return the section of a platform, None where nothing was tuned."""
    newest = tuning.filter("newest")
    if newest.is_empty():
        return None
    ran = newest.drop_nulls("tokens_s").sort(*PROOF, "kind", "k", "drafter", "threads", "repack")
    columns: dict[str, Column] = {
        "model": _model,
        "prompts": "kind",
        "K": "k",
        "drafter": "drafter",
        "role": "role",
        "threads": "threads",
        "repacked": lambda row: "yes" if row["repack"] else "no",
        "predicted, tokens/s": backed(lambda row: f"{row['predicted_tokens_s']:.1f}"),
        "tokens/s": backed(lambda row: f"{row['tokens_s']:.1f}"),
        "95 %, tokens/s": lambda row: _ends(row, "tokens_s", 1),
        "times none": backed(lambda row: f"{row['gain']:.2f}"),
        "95 %, times none": lambda row: _ends(row, "gain", 2),
        "identical": lambda row: f"{row['identical_share']:.0%}",
        "steps as replayed": lambda row: {True: "yes", False: "no"}.get(row["steps_equal"]),
    }
    return TuningSection(
        verdicts=tuple(
            _verdict(row) for row in newest.filter("run", kind=ALL).sort(PROOF).to_dicts()
        ),
        settings=grid(ran.filter(kind=ALL).to_dicts(), columns),
        kinds=grid(ran.filter(pl.col("kind") != ALL).to_dicts(), columns),
    )


def _model(row: Row) -> str:
    return f"{row['model']} in {row['engine']} {row['release']}{decoded(row)}"


def _verdict(row: Row) -> Cell:
    setting = "none" if row["k"] == 0 else f"{row['drafter']} with K = {row['k']}"
    return cell(
        f"{_model(row)}: "
        f"{_VERDICTS[row['verdict']]}. Run {setting}, on {row['threads']} "
        f"thread{'s' if row['threads'] != 1 else ''}. Drafts ran by: {row['loop']}.",
        row["row_id"],
    )


def _ends(row: Row, name: str, digits: int) -> str | None:
    low, high = row[f"{name}_low"], row[f"{name}_high"]
    return None if high is None else f"{low:.{digits}f} to {high:.{digits}f}"
