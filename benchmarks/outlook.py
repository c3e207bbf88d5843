"""The stage `outlook`: seconds of each part, and seconds per 10,000 rows of its tables."""

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
    """Return the rows of the table `platforms` from datasheets alone."""
    config_ids = {config_id(name, sheet) for name, sheet in sheets.items()}
    return PLATFORMS.build(PLATFORMS.frame(platform_rows(sheets, [], "public")), config_ids)


def timed(label: str, function: Callable[[], int]) -> None:
    """Print the run time of a function, and its time per 10,000 rows that it returns."""
    start_s = time.perf_counter()
    rows = function()
    seconds = time.perf_counter() - start_s
    print(f"{label:24}{rows:8} rows{seconds:8.2f} s{1e4 * seconds / rows:8.2f} s of 10,000")


def main() -> None:
    """Time the predictions, the engines' schedules, and the checks before tables are written."""
    config = Config(ROOT / "config")
    platforms = sheet_rows(config.platforms)
    tables: dict[str, pl.DataFrame] = {}

    def answerer() -> Answerer:
        return Answerer(Layout(ROOT / "results"), config, offline=True, log_alone=True)

    def make_outlook() -> int:
        result = outlook(config, answerer(), platforms)
        tables.update(lookup=result.lookup, forecast=result.forecast)
        return result.lookup.height + result.forecast.height

    def make_schedules() -> int:
        tables["schedules"] = schedules(config, answerer(), platforms)
        return tables["schedules"].height

    def build_tables() -> int:
        for table in (LOOKUP, FORECAST, SCHEDULES):
            rows = tables[table.name]
            table.build(rows, rows["from_ids"].explode().unique().to_list())
        return sum(rows.height for rows in tables.values())

    timed("lookup and forecast", make_outlook)
    timed("schedules", make_schedules)
    timed("checks of all three", build_tables)


if __name__ == "__main__":
    main()
