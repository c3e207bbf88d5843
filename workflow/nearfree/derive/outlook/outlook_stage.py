"""The stages `outlook` and `schedules`: what follows from models, datasheets and rules alone."""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import polars as pl

from nearfree.config.files import Config
from nearfree.derive.granularity.facts import sheet_facts
from nearfree.derive.granularity.resolve import Resolver
from nearfree.derive.outlook.drift import VERSION_DRIFT, version_drift
from nearfree.derive.outlook.drift_questions import STUDIED
from nearfree.derive.outlook.lookup import PUBLISHED_LOOKUP, printed_rows, published_lookup
from nearfree.derive.outlook.outlook import FORECAST, LOOKUP, MODELS, outlook
from nearfree.derive.outlook.schedules import SCHEDULES, schedules
from nearfree.derive.outlook.trend import TREND, trend
from nearfree.derive.predict.answers import Answerer
from nearfree.derive.predict.provenance import (
    calibrated,
    digests,
    read_from,
    tolerances_digest,
)
from nearfree.derive.tables.platforms import PLATFORMS
from nearfree.derive.tables.schema import Table
from nearfree.derive.tables.store import read_table, seals_digest, write_table
from nearfree.hardware.platforms import Platform
from nearfree.log.evidence import read_scope
from nearfree.log.names import Layout
from nearfree.public.published import SCOPE as PUBLIC
from nearfree.public.published import STREAM as PUBLISHED

TABLES = (LOOKUP, FORECAST, PUBLISHED_LOOKUP, TREND, VERSION_DRIFT)
"""Those of the stage `outlook`."""


class _Made(NamedTuple):
    table: Table
    rows: pl.DataFrame


def write_outlook(layout: Layout, config: Config, epsilon: float) -> None:
    """Write the tables of TABLES into the public scope, by the log's rules and constants alone.

    Parameters
    ----------
    config
        Tolerances, platforms, models, deployments, and the releases whose rules are compared.
    epsilon
        The tolerance at which releases are compared.
    """
    platforms = read_table(layout, PUBLIC, PLATFORMS)
    answerer = Answerer(layout, config, offline=True, log_alone=True)
    found = outlook(config, answerer, platforms)
    printed = published_answers(layout, config.platforms, platforms)
    ids = {*platforms["row_id"], *calibrated(layout).values(), *found.models, *printed.known}
    made_from = _made_from(layout, [epsilon, *config.site.tolerances], found.models)
    rest = (_Made(LOOKUP, found.lookup), _Made(FORECAST, found.forecast),
            _Made(PUBLISHED_LOOKUP, printed.rows))  # fmt: skip
    for table, rows in (*rest, *_followed(layout, config, answerer, platforms, epsilon)):
        write_table(layout, PUBLIC, table, table.build(rows, ids), made_from)


def write_schedules(layout: Layout, config: Config) -> None:
    """Write what engines take for each deployment into the public scope.

    Parameters
    ----------
    config
        Tolerances, platforms, models and deployments.
    """
    platforms = read_table(layout, PUBLIC, PLATFORMS)
    answerer = Answerer(layout, config, offline=True, log_alone=True)
    rows = schedules(config, answerer, platforms)
    named = rows["from_ids"].explode().drop_nulls().unique()
    models = sorted(named.filter(named.str.starts_with(MODELS)))
    ids = {*platforms["row_id"], *calibrated(layout).values(), *models}
    made_from = _made_from(layout, config.site.tolerances, models)
    write_table(layout, PUBLIC, SCHEDULES, SCHEDULES.build(rows, ids), made_from)


def _made_from(
    layout: Layout, tolerances: Sequence[float], models: Iterable[str]
) -> dict[str, str]:
    return (
        digests(layout, PUBLIC, PLATFORMS)
        | seals_digest(layout, PUBLIC)
        | tolerances_digest(tolerances)
        | read_from(layout)
        | dict(each.rsplit("@", 1) for each in models)
    )


class Printed(NamedTuple):
    """The rows of `published_lookup`, and the events of what the paper prints."""

    rows: pl.DataFrame
    known: list[str]


def published_answers(
    layout: Layout, sheets: dict[str, Platform], platforms: pl.DataFrame
) -> Printed:
    """Return the paper's deployment table, computed anew.

    Parameters
    ----------
    platforms
        Rows of the table `platforms`; none where rows need not say what they are made from.
    """
    take = read_scope(layout, PUBLIC, stream=PUBLISHED)[-1]
    rows = published_lookup(printed_rows(take), sheet_facts(sheets, platforms), Resolver(layout))
    return Printed(rows, [event.event_id for event in take.events])


def _followed(
    layout: Layout, config: Config, answerer: Answerer, platforms: pl.DataFrame, epsilon: float
) -> Iterator[_Made]:
    yield _Made(TREND, trend(config.platforms, platforms, answerer))
    drift = version_drift(
        STUDIED,
        config.releases,
        config.platforms,
        platforms,
        answerer=answerer,
        resolver=Resolver(layout),
        epsilon=epsilon,
    )
    yield _Made(VERSION_DRIFT, drift)
