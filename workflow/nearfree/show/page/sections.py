"""The report's sections as plain data: rows of cells, each number linked to its table row."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby, pairwise
from operator import itemgetter
from typing import Any
from urllib.parse import quote

import polars as pl
from msgspec import Struct, structs

from nearfree.backends.adapters.kernel import ADAPTERS
from nearfree.core.label import AXES, SIZES, label
from nearfree.core.modules.model import MODEL
from nearfree.core.modules.registry import MAIN
from nearfree.core.setting import FIELDS, STORED, WHOLE
from nearfree.derive.tables.settings import distinguishing_fields
from nearfree.log.events import RunFinished
from nearfree.log.evidence import Take
from nearfree.measure.adapter_runs import AdapterRuns, untested_adapters

Row = dict[str, Any]


class Cell(Struct, frozen=True):
    """A cell: its text, and the id of the row or event that its number comes from."""

    text: str
    row: str = ""

    @property
    def href(self) -> str:
        """The link that opens the row, empty without a row."""
        return f"#row={quote(self.row, safe=_PLAIN)}" if self.row else ""


_PLAIN = ":/@,.-_"
"""Characters that need no escape in a link, besides letters and digits."""


class Grid(Struct, frozen=True):
    """One table of the report."""

    head: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]


def cell(text: object, row_id: str | None) -> Cell:
    """Return a cell that links to a row."""
    return Cell(str(text), row_id or "")


Column = str | Callable[[Row], object]
"""A column: the name of a row's column, or a function of the row."""


def grid(rows: Iterable[Row], columns: Mapping[str, Column]) -> Grid:
    """Return a table with one line per row; an empty value shows a dash.

    Parameters
    ----------
    columns
        Columns by heading. A `Cell` is taken as it is, any other value as text.
    """
    lines = (tuple(_plain(_of(row, column)) for column in columns.values()) for row in rows)
    return Grid(tuple(columns), tuple(lines))


def backed(column: Column) -> Callable[[Row], Cell]:
    """Return a column whose cells link to their row."""
    return lambda row: cell(_of(row, column), row["row_id"])


def _of(row: Row, column: Column) -> object:
    return row[column] if isinstance(column, str) else column(row)


def _plain(value: object) -> Cell:
    return value if isinstance(value, Cell) else Cell(str(_dash(value)))


def _dash(value: object) -> object:
    return "-" if value is None else value


def n_max(row: Row) -> str:
    """Return a boundary as text, with ≥ where the grid ends there."""
    return f"≥ {row['n_max']}" if row["next_n"] is None else str(row["n_max"])


def from_one(row: Row) -> str | None:
    """Return a boundary from N = 1 as text, None without one.

    It gets ≥ only where it equals the boundary from the baseline, of which the next N is known.
    """
    n_from_one = row["n_max_from_1"]
    if n_from_one is None:
        return None
    return n_max(row) if n_from_one == row["n_max"] else str(n_from_one)


def interval(row: Row) -> str:
    """Return a boundary's interval as text."""
    if row["n_low"] is None:
        return "-"
    return (
        str(row["n_low"]) if row["n_low"] == row["n_high"] else f"{row['n_low']} to {row['n_high']}"
    )


def answer(boundaries: pl.DataFrame, predictions: pl.DataFrame, epsilon: float) -> Grid:
    """Return the newest boundary of every module's setting at a tolerance, with predictions.

    Whole models and engines are in other sections.
    """
    newest = boundaries.filter("newest", pl.col("epsilon") == epsilon, _of_a_module())
    module_predictions = predictions.filter(pl.col("epsilon") == epsilon, _of_a_module())
    laws = (
        module_predictions.select("predictor", "basis").unique().drop_nulls().sort(pl.all()).rows()
    )
    columns: dict[str, Column] = {
        "module": lambda row: f"{row['module']}, {row['backend']}, {row['dtype']}",
        "setting": "label",
        "N_max": backed(n_max),
        "interval": backed(interval),
        "verdict": "verdict",
        "baseline N": backed("baseline"),
        "N_max from T(1)": backed(lambda row: _dash(from_one(row))),
        "T(baseline) / min T": backed(lambda row: f"{row['baseline_over_min']:.2f}"),
    }
    for law in laws:
        columns[", ".join(map(words, law))] = predicted(
            module_predictions, law, "setting_key", "baseline"
        )
    return grid(labelled_settings(newest), columns)


def _of_a_module() -> pl.Expr:
    return ~pl.col("module").is_in(WHOLE)


def predicted(predictions: pl.DataFrame, key: Sequence[str | None], *names: str) -> Column:
    """Return the column of one predictor, with a dash where it made no prediction.

    Parameters
    ----------
    key
        The predictor and its basis.
    names
        The columns that identify a setting.
    """
    by_setting = {
        tuple(row[name] for name in names): row
        for row in predictions.to_dicts()
        if [row["predictor"], row["basis"]] == [*key]
    }

    def text(setting: Row) -> Cell | str:
        row = by_setting.get(tuple(setting[name] for name in names))
        if row is None:
            return "-"
        value = "refused" if row["n_max"] is None else f"{row['n_max']:.1f}"
        return cell("unbounded" if row["unbounded"] else value, row["row_id"])

    return text


def labelled_settings(boundaries: pl.DataFrame) -> list[Row]:
    """Return rows ordered by module and its variable, each with a label of its setting."""
    rows = []
    for group in boundaries.sort("module").partition_by("module", maintain_order=True):
        variable = VARIABLE.get(group["module"][0], "batch")
        labelled = group.with_columns(_labels(group, variable))
        rows += labelled.sort("backend", "routing", variable, "batch", "setting_key").to_dicts()
    return rows


def _labels(group: pl.DataFrame, variable: str) -> pl.Series:
    """Return labels of settings: the module's own variable, then the fields in which they differ.

    A label has the study where several studies hold the same setting.
    """
    fields = [name for name in _differing(group, variable) if name != "backend"]
    several_studies = pl.col("stream").n_unique().over("setting_key") > 1
    study = pl.when(several_studies).then("stream").alias("study")
    rows = group.select(*fields, study).to_dicts()
    texts = [label(row, (*fields, "study"), "short") for row in rows]
    return pl.Series("label", texts, dtype=pl.String)


def _differing(group: pl.DataFrame, variable: str) -> list[str]:
    """Return the fields in which settings of one module differ; a model's name covers its shape."""
    fields = distinguishing_fields(group, variable)
    if group["module"][0] != MODEL.name:
        return fields
    return [name for name in fields if FIELDS[name].role != "shape"]


VARIABLE = {module.name: module.own for module in MAIN}
"""The variable that each module's studies sweep."""


def own_origin(boundaries: pl.DataFrame) -> str:
    """Return the origin of the numbers of a page's platforms: measured, or simulated."""
    simulated = "simulated" in boundaries["origin"]
    return "simulated" if simulated else "measured"


def takes(boundaries: pl.DataFrame, latency: pl.DataFrame, epsilon: float) -> Grid:
    """Return boundary, interval and T(baseline) of each take of settings with several takes."""
    own_boundaries = boundaries.filter(
        pl.col("epsilon") == epsilon, pl.col("origin") != "published"
    )
    baselines = latency.filter(pl.col("n") == pl.col("baseline")).select(
        "stream", "take", "plan8", "setting_key",
        pl.col("latency_us").alias("base_us"), pl.col("row_id").alias("base_id"),
    )  # fmt: skip
    joined = own_boundaries.join(baselines, on=["stream", "take", "plan8", "setting_key"])
    groups: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in labelled_settings(joined):
        groups[row["stream"], row["setting_key"]].append(row)
    rows: list[Row] = []
    for repeats in (group for group in groups.values() if len(group) > 1):
        low, high = max(r["n_low"] for r in repeats), min(r["n_high"] for r in repeats)
        overlap = {"overlap": "yes" if low <= high else "no"}
        rows += [row | overlap for row in sorted(repeats, key=itemgetter("take", "plan8"))]
    columns: dict[str, Column] = {
        "module": lambda row: f"{row['module']}, {row['backend']}",
        "setting": "label",
        "take": lambda row: f"{row['take']}-{row['plan8']}",
        "N_max": backed(n_max),
        "interval": backed(interval),
        "T(baseline), ms": lambda row: cell(f"{row['base_us'] / 1000:.3f}", row["base_id"]),
        "overlap": "overlap",
    }
    return grid(rows, columns)


def by_tolerance(boundaries: pl.DataFrame, sensitivity: pl.DataFrame) -> Grid:
    """Return N_max at every tolerance, one row per setting, with the verdict on its sensitivity."""
    newest = boundaries.filter("newest")
    epsilons = sorted(newest["epsilon"].unique())
    keys = ("platform", "stream", "setting_key")
    verdicts = {tuple(r[k] for k in keys): r for r in sensitivity.filter("newest").to_dicts()}
    rows = []
    for study in newest.sort("stream", "platform").partition_by("stream", "platform", "module"):
        varied = _differing(study, VARIABLE.get(study["module"][0], "batch"))
        ordered = study.sort(*SIZES, "setting_key", "epsilon").to_dicts()
        for key, group in groupby(ordered, key=lambda r: tuple(r[k] for k in keys)):
            by_epsilon = {row["epsilon"]: row for row in group}
            first = next(iter(by_epsilon.values()))
            verdict = verdicts[key]
            noisy = ", noisy" if first["noisy"] else ""
            rows.append(
                (
                    Cell(first["stream"]),
                    Cell(f"{first['platform']} ({first['origin']})"),
                    Cell(", ".join(f"{name} {first[name]}" for name in varied)),
                    *(
                        cell(n_max(by_epsilon[epsilon]), by_epsilon[epsilon]["row_id"])
                        if epsilon in by_epsilon
                        else Cell("-")
                        for epsilon in epsilons
                    ),
                    cell("robust" if verdict["robust"] else "fragile", verdict["row_id"]),
                    cell(verdict["verdict"] + noisy, verdict["row_id"]),
                    Cell(verdict["why"]),
                )
            )
    head = ("study or table", "platform", "setting", *(f"{epsilon:.0%}" for epsilon in epsilons))
    return Grid((*head, "verdict", "over tolerances", "reason"), tuple(rows))


def facts(platforms: pl.DataFrame) -> Grid:
    """Return phi, beta and rho of every platform, dtype and basis."""
    columns: dict[str, Column] = {
        "platform": "platform",
        "name": lambda row: row["vendor_name"] or "",
        "basis": lambda row: words(row["basis"]),
        "dtype": "dtype",
        "phi, TFLOP/s": backed(lambda row: f"{row['peak_tflops']:.4g}"),
        "beta, GB/s": backed(lambda row: f"{row['bandwidth_gb_s']:.4g}"),
        "rho, FLOP/byte": backed(lambda row: f"{row['balance_flop_per_byte']:.4g}"),
        "source": "source",
    }
    return grid(platforms.to_dicts(), columns)


def words(name: str) -> str:
    """Return a name with spaces."""
    return name.replace("_", " ")


def rules(granularity: pl.DataFrame) -> Grid:
    """Return the block and tile rules that the paper prints."""
    published = granularity.filter(pl.col("origin") == "published").sort("place", "branch")
    columns: dict[str, Column] = {
        "origin": "origin",
        "package": _release,
        "path": "path",
        "condition": "condition",
        "rows": backed("value"),
    }
    return grid(published.to_dicts(), columns)


def _release(row: Row) -> str:
    return f"{row['package']} {row['versions']}"


_SHOWN_RULES = ("block_size_m", "tile")
"""The rules that the page shows; the table `granularity` has all of them."""


def extracted(granularity: pl.DataFrame) -> Grid:
    """Return the block and tile rules that were read from backends' source code."""
    shown_rules = (pl.col("origin") == "extracted") & pl.col("path").is_in(_SHOWN_RULES)
    columns: dict[str, Column] = {
        "release": _release,
        "rule": "path",
        "condition": "condition",
        "value": backed("value"),
        "file and lines": lambda row: f"{row['place']}:{row['lines']}",
    }
    rows_ = granularity.filter(shown_rules).sort("package", "versions", "path", "branch")
    return grid(rows_.to_dicts(), columns)


def cost(takes: Iterable[Take]) -> Grid:
    """Return the seconds of each measuring take, and the share spent outside of forwards."""
    ends = [(str(take.name), take.events_of(RunFinished)[-1]) for take in takes]
    rows = [
        {"take": take, "row_id": end.event_id, **structs.asdict(end.data)}
        for take, end in ends
        if end.data.timed_s is not None
    ]
    columns: dict[str, Column] = {
        "take": "take",
        "seconds, last attempt": backed(lambda row: f"{row['wall_s']:.1f}"),
        "in forwards and warm-up": backed(lambda row: f"{row['timed_s']:.1f}"),
        "outside": backed(_outside),
    }
    return grid(rows, columns)


def _outside(row: Row) -> str:
    outside = max(row["wall_s"] - row["timed_s"], 0.0)
    return f"{outside / row['wall_s']:.1%}" if row["wall_s"] else "-"


def adapters(runs: AdapterRuns) -> Grid:
    """Return every adapter, and by kind of device whether the log holds a sealed run of it."""
    missing = {
        (adapter.module, adapter.backend, device) for adapter, device in untested_adapters(runs)
    }
    rows = []
    for adapter in ADAPTERS:
        key = adapter.module, adapter.backend
        devices = [
            f"{device}: {'never run' if (*key, device) in missing else 'run'}"
            for device in adapter.devices
        ]
        texts = (*key, f"envs/{adapter.environment}.lock", "; ".join(devices))
        rows.append(tuple(map(Cell, texts)))
    return Grid(("module", "backend", "environment", "sealed runs"), tuple(rows))


_WHAT_RUNS = ("model", "moe", "mask", "dtype", *STORED, *AXES)
"""The columns that tell what a setting runs, besides its study and backend."""


def cliffs(work: pl.DataFrame) -> Grid:
    """Return each N at which a setting's forward runs other kernels than at the previous N."""
    rows = []
    for group in work.filter("newest").partition_by("stream", "setting_key", "source"):
        for previous, current in pairwise(group.sort("n").to_dicts()):
            old_kernels, new_kernels = (row["kernels"].split("; ") for row in (previous, current))
            if set(old_kernels) != set(new_kernels):
                stopped = ", ".join(name for name in old_kernels if name not in new_kernels)
                started = ", ".join(name for name in new_kernels if name not in old_kernels)
                rows.append(current | {"gone": stopped or "-", "come": started or "-"})
    columns: dict[str, Column] = {
        "study": lambda row: f"{row['stream']}, {row['backend']}",
        "setting": lambda row: label(row, _WHAT_RUNS, "short"),
        "from N": backed("n"),
        "no longer": "gone",
        "now": "come",
    }
    return grid(rows, columns)
