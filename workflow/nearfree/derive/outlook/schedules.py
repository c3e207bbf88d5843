"""Table `schedules`: engines' options with draft lengths by batch size, for each deployment."""

from collections.abc import Iterator, Sequence
from functools import cache
from shlex import quote

import numpy as np
import polars as pl
from msgspec import structs

from nearfree.config.files import Config, DeploymentSpec
from nearfree.derive.outlook.about import (
    CONDITION,
    GRAPHS,
    MEMORY_COLUMNS,
    MEMORY_FORMULA,
    MODELS,
    UNFIT,
    condition_rows,
    model_ids,
)
from nearfree.derive.outlook.outlook import LOOKUP, outlook_inputs
from nearfree.derive.predict.answers import Answerer, calibration_ids
from nearfree.derive.predict.forecast.deployment import MOST_POINTS, Deployment, Questions
from nearfree.derive.predict.forecast.exits import sum_exits
from nearfree.derive.predict.forecast.expand_deployments import deployments, entry
from nearfree.derive.predict.forecast.forecast import positions
from nearfree.derive.predict.forecast.total import total
from nearfree.derive.schedule.draft_lengths import draft_lengths
from nearfree.derive.schedule.engines import BY_LENGTHS, ENGINES, drop_reason
from nearfree.derive.tables.columns import IDS, text
from nearfree.derive.tables.platforms import PLATFORMS
from nearfree.derive.tables.schema import Table
from nearfree.derive.tables.store import read_table, write_table
from nearfree.errors import ConfigError
from nearfree.log.names import Layout

LARGEST_BATCH, LONGEST = 256, 16
"""The last batch size of a schedule and its longest draft, tokens: the command's defaults."""
_ABOUT = {name: column for name, column in CONDITION.items() if name != "batch"}
SCHEDULES = Table(
    name="schedules",
    row="an engine's draft lengths for a model on a platform, over batch sizes; its memory is that "
    "of b = 1",
    key=(*_ABOUT, "epsilon", "engine"),
    formula="K = N_max - 1 drafts at each batch size, as the engine takes it",
    paper="sec. 6",
    code="nearfree.derive.schedule",
    beside=MEMORY_FORMULA,
    body={
        **_ABOUT,
        **MEMORY_COLUMNS,
        **GRAPHS,
        "moe": text(
            "the backend of the experts, with its version: the engine's own", nullable=True
        ),
        "epsilon": LOOKUP.body["epsilon"],
        "engine": text("the engine of the option", one_of=tuple(BY_LENGTHS)),
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
        "refusal": text("why there is no option", nullable=True),
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
_DEPLOYMENTS_AT_ONCE = MOST_POINTS // (len(_BATCHES) * len(_GRID))


def write_schedules(layout: Layout, scope: str, config: Config) -> None:
    """Write the table `schedules`."""
    platforms = read_table(layout, scope, PLATFORMS)
    answerer = Answerer(layout, config, log_alone=True)
    rows = schedules(config, answerer, platforms)
    ids = rows["from_ids"].explode().drop_nulls().unique()
    models = sorted(ids.filter(ids.str.starts_with(MODELS)))
    source_ids = {*platforms["row_id"], *calibration_ids(layout), *models}
    made_from = outlook_inputs(layout, scope, config.site.tolerances, models)
    write_table(layout, scope, SCHEDULES, SCHEDULES.build(rows, source_ids), made_from)


def schedules(config: Config, answerer: Answerer, platforms: pl.DataFrame) -> pl.DataFrame:
    """Return the rows of `schedules` for all entries of deployments.yaml, at every tolerance.

    `platforms` are rows of the table of that name, whose datasheets answers rest on.
    """
    frames = [SCHEDULES.frame([])]
    for name, spec in config.deployments.items():
        with entry(config, name):
            all_deployments = list(_served_deployments(config, structs.replace(spec, batch=(1,))))
        ids, options_text = model_ids(config, spec), pl.lit(_options(spec), dtype=pl.String)
        for begin in range(0, len(all_deployments), _DEPLOYMENTS_AT_ONCE):
            part = all_deployments[begin : begin + _DEPLOYMENTS_AT_ONCE]
            options = list(_option_rows(part, answerer, config.site.tolerances))
            rows = pl.DataFrame(options, schema=_SCHEMA, orient="row")
            about = condition_rows(name, part, ids, platforms).with_columns(
                options_text.alias("asked")
            )
            made_from = pl.concat_list("sources", "calibration").alias("from_ids")
            frames.append(rows.join(about, on="place").select(*SCHEDULES.body, made_from))
    return pl.concat(frames)


def _served_deployments(config: Config, spec: DeploymentSpec) -> Iterator[Deployment]:
    """Yield an entry's deployments; one without an engine is served by each that takes lengths."""
    all_deployments = deployments(config, spec, any_class=True)
    yield from (deployment for deployment in all_deployments if deployment.moe or deployment.server)
    if not all(deployment.moe or deployment.server for deployment in all_deployments):
        for engine in BY_LENGTHS:
            engine_spec = structs.replace(spec, moe=(ENGINES[engine].moe,))
            engine_deployments = deployments(config, engine_spec, any_class=True)
            yield from (deployment for deployment in engine_deployments if deployment.server)


def _options(spec: DeploymentSpec) -> str | None:
    """Return an entry's formats and kernels as options of the command; None if it names none."""
    names = {"dtype": spec.dtype, "weights": spec.weights, "activations": spec.activations,
             "kv-dtype": spec.kv_dtype, "dense": spec.dense,
             "moe-backend": spec.moe_backend}  # fmt: skip
    return " ".join(f"--{name} {quote(value)}" for name, value in names.items() if value) or None


def _option_rows(
    served: Sequence[Deployment], answerer: Answerer, epsilons: Sequence[float]
) -> Iterator[tuple[object, ...]]:
    queries = [
        structs.replace(deployment, batch=batch) for deployment in served for batch in _BATCHES
    ]
    total_latency = total(Questions(queries, _GRID), answerer)
    rows, baseline = np.arange(len(queries)), np.zeros(len(queries), dtype=np.int64)
    for epsilon in epsilons:
        last = sum_exits(total_latency, rows, baseline, epsilon).last
        n_max = total_latency.grid[last].reshape(-1, len(_BATCHES)).tolist()
        for place, deployment in enumerate(served):
            first_row, fitting = place * len(_BATCHES), _fitting_batches(deployment)
            reasons = filter(None, total_latency.refusals[first_row : first_row + fitting])
            reason = next(reasons, None) if fitting else f"{UNFIT} in memory"
            calibration = list(total_latency.calibration[first_row])
            boundaries = tuple(n_max[place][:fitting])
            for engine in BY_LENGTHS:
                backend = deployment.moe or deployment.server
                if backend and backend.name == ENGINES[engine].moe:
                    refusal = reason or drop_reason(engine, deployment.parallel.dp)
                    option_text = (None, refusal) if refusal else _option(engine, boundaries)
                    yield place, epsilon, engine, *option_text, calibration


def _fitting_batches(deployment: Deployment) -> int:
    """Return the number of batch sizes, from 1 on, that fit in memory."""
    largest = deployment.memory.largest_batch if deployment.memory else None
    return len(_BATCHES) if largest is None else min(largest, len(_BATCHES))


@cache
def _option(engine: str, n_max: tuple[float, ...]) -> tuple[str | None, str | None]:
    """Return an engine's option for boundaries from batch 1 on, or the reason of its refusal."""
    try:
        lengths = draft_lengths(dict(enumerate(n_max, 1)), most=LONGEST)
        return BY_LENGTHS[engine](lengths).text, None
    except ConfigError as error:
        return None, error.what
