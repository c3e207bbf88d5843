"""Table `schedules`: draft lengths by batch size, as engines take them, for each deployment."""

from collections.abc import Iterator, Sequence
from functools import cache
from shlex import quote

import numpy as np
import polars as pl
from msgspec import structs

from nearfree.config.files import Config, DeploymentSpec
from nearfree.derive.outlook.about import (
    ABOUT,
    GRAPHS,
    HELD,
    MODELS,
    TAKES,
    UNFIT,
    about_rows,
    model_ids,
)
from nearfree.derive.outlook.outlook import LOOKUP, outlook_inputs
from nearfree.derive.predict.answers import Answerer, calibrated
from nearfree.derive.predict.forecast.deployment import MOST_POINTS, Deployment, Questions
from nearfree.derive.predict.forecast.exits import sum_exits
from nearfree.derive.predict.forecast.expand_deployments import deployments, entry
from nearfree.derive.predict.forecast.forecast import positions
from nearfree.derive.predict.forecast.total import total
from nearfree.derive.schedule.draft_lengths import draft_lengths
from nearfree.derive.schedule.engines import BY_LENGTHS, ENGINES, dropped
from nearfree.derive.tables.columns import IDS, text
from nearfree.derive.tables.platforms import PLATFORMS
from nearfree.derive.tables.schema import Table
from nearfree.derive.tables.store import read_table, write_table
from nearfree.errors import ConfigError
from nearfree.log.names import Layout

LARGEST_BATCH, LONGEST = 256, 16
"""The last batch size of a schedule and its longest draft, tokens: the command's defaults."""
_ABOUT = {name: column for name, column in ABOUT.items() if name != "batch"}
SCHEDULES = Table(
    name="schedules",
    row="an engine's draft lengths for a model on a platform, over batch sizes; its memory is that "
    "of b = 1",
    key=(*_ABOUT, "epsilon", "engine"),
    formula="K = N_max - 1 drafts at each batch size, as the engine takes it",
    paper="sec. 6",
    code="nearfree.derive.schedule",
    beside=TAKES,
    body={
        **_ABOUT,
        **HELD,
        **GRAPHS,
        "moe": text("what runs the experts, with its version: the engine's own", nullable=True),
        "epsilon": LOOKUP.body["epsilon"],
        "engine": text("whose option", one_of=tuple(BY_LENGTHS)),
        "option": text(
            "what `nearfree schedule` prints: the engine's option, by the work model's N_max from "
            "N = 1 at each batch size up to 256, or to the largest that fits",
            nullable=True,
        ),
        "asked": text(
            "formats and kernels that the entry asks for instead of the model's and the engine's "
            "own, as the command takes them",
            nullable=True,
        ),
        "refusal": text("why there is none", nullable=True),
    },
)
_SCHEMA: dict[str, pl.DataType | type[pl.DataType]] = {
    "place": pl.Int64,
    "epsilon": pl.Float64,
    "engine": pl.String,
    "option": pl.String,
    "refusal": pl.String,
    "calibration": IDS,
}
_BATCHES = range(1, LARGEST_BATCH + 1)
_GRID = positions(LONGEST + 1)
_AT_ONCE = MOST_POINTS // (len(_BATCHES) * len(_GRID))


def write_schedules(layout: Layout, scope: str, config: Config) -> None:
    """Write what engines take for each deployment.

    Parameters
    ----------
    config
        Tolerances, platforms, models and deployments.
    """
    platforms = read_table(layout, scope, PLATFORMS)
    answerer = Answerer(layout, config, log_alone=True)
    rows = schedules(config, answerer, platforms)
    named = rows["from_ids"].explode().drop_nulls().unique()
    models = sorted(named.filter(named.str.starts_with(MODELS)))
    known = {*platforms["row_id"], *calibrated(layout), *models}
    made_from = outlook_inputs(layout, scope, config.site.tolerances, models)
    write_table(layout, scope, SCHEDULES, SCHEDULES.build(rows, known), made_from)


def schedules(config: Config, answerer: Answerer, platforms: pl.DataFrame) -> pl.DataFrame:
    """Return the rows of `schedules` for all that deployments.yaml lists, at every tolerance.

    Parameters
    ----------
    platforms
        Rows of the table `platforms`, whose datasheets answers rest on.
    """
    frames = [SCHEDULES.frame([])]
    for name, spec in config.deployments.items():
        with entry(config, name):
            every = list(_served(config, structs.replace(spec, batch=(1,))))
        ids, more = model_ids(config, spec), pl.lit(_options(spec), dtype=pl.String)
        for begin in range(0, len(every), _AT_ONCE):
            some = every[begin : begin + _AT_ONCE]
            options = list(_option_rows(some, answerer, config.site.tolerances))
            rows = pl.DataFrame(options, schema=_SCHEMA, orient="row")
            about = about_rows(name, some, ids, platforms).with_columns(more.alias("asked"))
            made_from = pl.concat_list("sources", "calibration").alias("from_ids")
            frames.append(rows.join(about, on="place").select(*SCHEDULES.body, made_from))
    return pl.concat(frames)


def _served(config: Config, spec: DeploymentSpec) -> Iterator[Deployment]:
    """Yield an entry's deployments; what no engine is named for, by each that takes lengths."""
    every = deployments(config, spec, any_class=True)
    yield from (each for each in every if each.moe or each.server)
    if not all(each.moe or each.server for each in every):
        for engine in BY_LENGTHS:
            by = structs.replace(spec, moe=(ENGINES[engine].moe,))
            named = deployments(config, by, any_class=True)
            yield from (each for each in named if each.server)


def _options(spec: DeploymentSpec) -> str | None:
    """Return what an entry asks for besides, as options of the command, None without any."""
    names = {"dtype": spec.dtype, "weights": spec.weights, "activations": spec.activations,
             "kv-dtype": spec.kv_dtype, "dense": spec.dense,
             "moe-backend": spec.moe_backend}  # fmt: skip
    return " ".join(f"--{name} {quote(value)}" for name, value in names.items() if value) or None


def _option_rows(
    asked: Sequence[Deployment], answerer: Answerer, epsilons: Sequence[float]
) -> Iterator[tuple[object, ...]]:
    queries = [structs.replace(each, batch=batch) for each in asked for batch in _BATCHES]
    total_latency = total(Questions(queries, _GRID), answerer)
    rows, begin = np.arange(len(queries)), np.zeros(len(queries), dtype=np.int64)
    for epsilon in epsilons:
        last = sum_exits(total_latency, rows, begin, epsilon).last
        n_max = total_latency.grid[last].reshape(-1, len(_BATCHES)).tolist()
        for place, each in enumerate(asked):
            first, held = place * len(_BATCHES), _held(each)
            reasons = filter(None, total_latency.refusals[first : first + held])
            reason = next(reasons, None) if held else f"{UNFIT} in memory"
            calibration = list(total_latency.calibration[first])
            known = tuple(n_max[place][:held])
            for engine in BY_LENGTHS:
                named = each.moe or each.server
                if named and named.name == ENGINES[engine].moe:
                    why = reason or dropped(engine, each.parallel.dp)
                    option_text = (None, why) if why else _option(engine, known)
                    yield place, epsilon, engine, *option_text, calibration


def _held(deployment: Deployment) -> int:
    """Return how many of the batch sizes, from 1 on, memory holds."""
    most = deployment.memory.largest_batch if deployment.memory else None
    return len(_BATCHES) if most is None else min(most, len(_BATCHES))


@cache
def _option(engine: str, n_max: tuple[float, ...]) -> tuple[str | None, str | None]:
    """Return an engine's option for boundaries from batch 1 on, or why there is none."""
    try:
        lengths = draft_lengths(dict(enumerate(n_max, 1)), most=LONGEST)
        return BY_LENGTHS[engine](lengths).text, None
    except ConfigError as error:
        return None, error.what
