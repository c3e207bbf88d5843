"""The table `platforms` of all datasheets, and facts of datasheets with a fact changed."""

import polars as pl
from msgspec.structs import replace
from nearfree.config.files import Config
from nearfree.derive.granularity.facts import sheet_facts
from nearfree.derive.predict.answers import Answerer
from nearfree.derive.tables.platforms import PLATFORMS, config_id, platform_rows
from nearfree.hardware.platforms import Platform

from derive.questions import LOG, ROOT

CONFIG = Config(ROOT / "config")
SHEETS = CONFIG.platforms
ANSWERER = Answerer(LOG, CONFIG, offline=True, log_alone=True)


def sheet_table(sheets: dict[str, Platform] = SHEETS) -> pl.DataFrame:
    """Return the rows of `platforms` that datasheets make."""
    known = {config_id(name, sheet) for name, sheet in sheets.items()}
    return PLATFORMS.build(PLATFORMS.frame(platform_rows(sheets, [], "public")), known)


def facts_of(sheets: dict[str, Platform] = SHEETS) -> pl.DataFrame:
    """Return the facts of datasheets with the ids of their rows."""
    return sheet_facts(sheets, sheet_table(sheets))


def with_phi(name: str, factor: float) -> dict[str, Platform]:
    """Return all datasheets, with phi of one platform times a factor."""
    peaks = {dtype: factor * peak for dtype, peak in SHEETS[name].peak_tflops.items()}
    return SHEETS | {name: replace(SHEETS[name], peak_tflops=peaks)}
