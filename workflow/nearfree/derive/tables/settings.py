"""Table `settings`: every setting of a scope."""

import polars as pl
from msgspec import structs

from nearfree.core.label import setting_key
from nearfree.core.setting import Setting
from nearfree.derive.tables.columns import ORIGINS, SETTING_COLUMNS, count, counts, text
from nearfree.derive.tables.schema import Table

SETTINGS = Table(
    name="settings",
    row="a setting of one platform",
    key=("platform", "origin", "setting_key", "baseline"),
    formula="what was asked, with the first event of its newest take",
    code="nearfree.derive.tables.project",
    body={
        "platform": text("the kind of machine"),
        "origin": text("where its latencies or boundaries come from", one_of=ORIGINS),
        **SETTING_COLUMNS,
        "baseline": count("the N that ratios refer to"),
        "grid": counts("the N of the newest curve, rising from the baseline; published: as named"),
    },
)


def setting_row(setting: Setting) -> dict[str, object]:
    """Return a setting's columns."""
    return {"setting_key": setting_key(setting), **structs.asdict(setting)}


def distinguishing_fields(frame: pl.DataFrame, own: str) -> list[str]:
    """Return the columns that distinguish a study's settings: its own variable, then the others.

    `own`, the variable of the study, such as `batch`, is always first.
    """
    fields = [name for name in SETTING_COLUMNS if name not in ("setting_key", "module", own)]
    return [own, *(name for name in fields if frame[name].n_unique() > 1)]
