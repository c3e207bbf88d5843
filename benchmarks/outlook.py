"""The stage `outlook`: seconds of each part, and of 10,000 rows of the tables about deployments."""

import time
from collections.abc import Callable
from pathlib import Path

import polars as pl
from nearfree.config.files import Config
from nearfree.derive.outlook.outlook import FORECAST, LOOKUP, outlook
from nearfree.derive.outlook.schedules import SCHEDULES, schedules
from nearfree.derive.predict.answers import Answerer
from nearfree.derive.tables.platforms import PLATFORMS, config_id, platform_rows
from nearfree.hardware.platforms import Platform
from nearfree.log.names import Layout

ROOT = Path(__file__).parents[1]


def sheet_rows(sheets: dict[str, Platform]) -> pl.DataFrame:
    """Return the rows of `platforms` that datasheets make."""
    known = {config_id(name, sheet) for name, sheet in sheets.items()}
    return PLATFORMS.build(PLATFORMS.frame(platform_rows(sheets, [], "public")), known)


def timed(label: str, work: Callable[[], int]) -> None:
    """Print the seconds of some work, and those of 10,000 of the rows that it returns."""
    began = time.perf_counter()
    rows = work()
    seconds = time.perf_counter() - began
    print(f"{label:24}{rows:8} rows{seconds:8.2f} s{1e4 * seconds / rows:8.2f} s of 10,000")


def main() -> None:
    """Time what predictors say, how engines take it, and the checks before a table is written."""
    config = Config(ROOT / "config")
    platforms = sheet_rows(config.platforms)
    found: dict[str, pl.DataFrame] = {}

    def answerer() -> Answerer:
        return Answerer(Layout(ROOT / "results"), config, offline=True, log_alone=True)

    def said() -> int:
        made = outlook(config, answerer(), platforms)
        found.update(lookup=made.lookup, forecast=made.forecast)
        return made.lookup.height + made.forecast.height

    def drafted() -> int:
        found["schedules"] = schedules(config, answerer(), platforms)
        return found["schedules"].height

    def built() -> int:
        for table in (LOOKUP, FORECAST, SCHEDULES):
            rows = found[table.name]
            table.build(rows, rows["from_ids"].explode().unique().to_list())
        return sum(rows.height for rows in found.values())

    timed("lookup and forecast", said)
    timed("schedules", drafted)
    timed("checks of all three", built)


if __name__ == "__main__":
    main()
