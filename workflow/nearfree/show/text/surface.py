"""Answers over many deployments: `predict --positions K` and `surface`."""

from collections.abc import Iterator, Sequence
from itertools import groupby
from pathlib import Path

import polars as pl

from nearfree.decoders.decoder import Decoder
from nearfree.derive.predict.forecast.deployment import Deployment
from nearfree.derive.predict.forecast.forecast import Forecast
from nearfree.derive.predict.forecast.surface import NEAR_FREE, inverse
from nearfree.errors import ConfigError
from nearfree.show.text.answer_json import with_about
from nearfree.show.text.forecast import amount, columns


def check_points_file(path: Path) -> None:
    """Refuse a file whose name ends with neither .parquet nor .csv; ConfigError."""
    if path.suffix not in (".parquet", ".csv"):
        raise ConfigError(
            f"{path} is neither a .parquet nor a .csv file", remedy="Name it so with --output"
        )


def write_points(path: Path, queries: Sequence[Deployment], points: pl.DataFrame) -> None:
    """Write points with their deployments' columns to a file that was checked."""
    rows = with_about(queries, points)
    with path.open("wb") as file:
        if path.suffix == ".csv":
            rows.write_csv(file)
        else:
            rows.write_parquet(file)


def surface_report(
    queries: Sequence[Deployment], boundaries: pl.DataFrame, epsilon: float
) -> Iterator[str]:
    """Yield N_max by batch (down) and context (across), a block a model, platform and routing."""
    rows = {(row["deployment"], row["baseline"] == 1): row for row in boundaries.to_dicts()}
    first = True
    for (decoder, platform, routing), group in groupby(enumerate(queries), _block):
        block = list(group)
        query = block[0][1]
        backends = ", ".join(str(backend) for backend in (query.attention, query.moe) if backend)
        bound = f", {routing} routing" if routing else ""
        for single in (True, False):
            if not single and all(each_query.full_baseline == 1 for _, each_query in block):
                continue
            base = "N = 1" if single else "the paper's baseline N = ceil(E / (b k))"
            yield from [] if first else [""]
            first = False
            yield (
                f"{decoder.name} on {platform}, {backends}{bound}: N_max at the tolerance "
                f"{epsilon:g} from {base}, by the work model"
            )
            yield from _matrix(block, rows, single=single)
    yield from _refused(boundaries)


def _matrix(
    block: Sequence[tuple[int, Deployment]], rows: dict[tuple[int, bool], dict[str, object]],
    *, single: bool,
) -> Iterator[str]:  # fmt: skip
    contexts = list(dict.fromkeys(query.context for _, query in block))
    table: list[list[object]] = [["b \\ L", *contexts]]
    cells: dict[int, list[object]] = {}
    for place, query in block:
        row = rows.get((place, single)) or rows[place, True]
        cell = amount(row["n_max"], censored=bool(row["censored"]))  # type: ignore[arg-type]
        cells.setdefault(query.batch, []).append(cell)
    table += [[batch, *values] for batch, values in cells.items()]
    yield from columns(table, left=0)


def _refused(boundaries: pl.DataFrame) -> Iterator[str]:
    for reason in boundaries["refusal"].drop_nulls().unique(maintain_order=True):
        yield f"refused: {reason}"


def _block(entry: tuple[int, Deployment]) -> tuple[Decoder, str, str | None]:
    return entry[1].decoder, entry[1].platform, entry[1].routing


def inverse_report(
    forecast: Forecast, positions: int, epsilon: float, accepted: float | None
) -> Iterator[str]:
    """Yield the cost of K positions in each deployment, the near-free ones first."""
    rows = inverse(forecast, positions, epsilon)
    free = rows.filter(verdict=NEAR_FREE)
    yield (
        f"{positions} positions are near-free (T({positions}) <= {1 + epsilon:g} T(1), by the work "
        f"model) in {free.height} of {rows.height} settings"
    )
    ratio = f"T({positions})/T(1)"
    used = [] if accepted is None else ["accepted / N_max"]
    head: list[object] = ["model", "platform", "backends", "routing", "b", "L", ratio, "interval",
                          "N_max", *used, "verdict"]  # fmt: skip
    table: list[list[object]] = [head]
    later = pl.col("verdict").ne_missing(pl.lit(NEAR_FREE))
    for row in rows.sort(later, maintain_order=True).to_dicts():
        query = forecast.deployments[row["deployment"]]
        backends = ", ".join(str(backend) for backend in (query.attention, query.moe) if backend)
        setting = [query.decoder.name, query.platform, backends, query.routing or "-",
                   query.batch, query.context]  # fmt: skip
        if row["refusal"]:
            table.append([*setting, "-", "", "-", *(["-"] if used else []), row["refusal"]])
            continue
        interval = f"{row['low']:.2f} to {row['high']:.2f}"
        share = [] if accepted is None else [f"{accepted / row['n_max']:.2f}"]
        table.append(
            [*setting, f"{row['ratio']:.3f}", interval, row["n_max"], *share, row["verdict"]]
        )
    yield from columns(table)
