"""The report's sections on models: measured and predicted N_max, the lookup table, releases."""

from collections.abc import Mapping, Sequence
from functools import partial

import polars as pl
from msgspec import Struct

from nearfree.core.label import AXES, NESTED, label, ordered
from nearfree.core.parallel import Parallel
from nearfree.core.setting import FIELDS
from nearfree.decoders.modules import BETWEEN, HEAD
from nearfree.derive.outlook.about import MODELS, UNFIT
from nearfree.derive.predict.answers import PREDICTORS
from nearfree.derive.predict.forecast.forecast import LARGEST, headline
from nearfree.derive.predict.forecast.total import PREDICTOR
from nearfree.show.figures.theme import rank
from nearfree.show.page.inline import FORMATS
from nearfree.show.page.sections import Cell, Column, Grid, Row, backed, cell, grid, interval, n_max
from nearfree.show.text.forecast import amount
from nearfree.show.text.memory import gb

CURVE = ["platform", "stream", "setting_key"]
SETTING = ("model", *ordered(AXES, "batch", "context", "routing"))
"""The columns in which a model's settings differ."""
ORDER = ("model", *NESTED, "setting_key")
_WAY = ("predictor", "basis")
_MINIMUM = "modules_minimum"
"""The predictor that is explained where it misses."""


def measured(boundaries: pl.DataFrame, composition: pl.DataFrame) -> Grid:
    """Return each model's boundary, the module that grew most, and each prediction.

    A predictor that refuses every setting has no column.

    Parameters
    ----------
    boundaries
        Newest rows of that table of measured models at one tolerance.
    composition
        Rows of that table at the same tolerance.
    """
    predictions: dict[tuple[str, ...], dict[tuple[str, str | None], Row]] = {}
    for row in composition.to_dicts():
        key = tuple(row[name] for name in CURVE)
        predictions.setdefault(key, {})[row["predictor"], row["basis"]] = row
    answered = composition.drop_nulls("predicted")
    answering = answered.select(_WAY).unique().sort(rank(), *_WAY).rows()
    rows = [
        row | {"by_way": predictions.get(tuple(row[name] for name in CURVE), {})}
        for row in boundaries.sort(ORDER).with_columns(_study()).to_dicts()
    ]
    columns: dict[str, Column] = {
        **{FIELDS[name].symbol: name for name in SETTING},
        "from N": backed("baseline"),
        "N_max": backed(n_max),
        "interval": backed(interval),
        "verdict": "verdict",
        "grew most, part of the growth": lambda row: _grew(
            next(iter(row["by_way"].values()), None)
        ),
        **{_named(*way): partial(_prediction, way) for way in answering},
    }
    return grid(rows, columns)


def ways(scores: pl.DataFrame) -> Grid:
    """Return how often each predictor answered and was right about models.

    Parameters
    ----------
    scores
        Rows of that table of models, of one platform, at one tolerance.
    """
    columns: dict[str, Column] = {
        "predictor": lambda row: _named(row["predictor"], row["basis"]),
        "settings": backed("settings"),
        "answered": backed(lambda row: f"{row['answered']} of {row['settings']}"),
        "hits": backed(lambda row: f"{row['hits']} of {row['settings']}"),
        "within the interval": backed(lambda row: f"{row['within']} of {row['settings']}"),
        "widest interval": backed(_widest),
        "same limiter": backed(lambda row: f"{row['same_limiter']} of {row['limiters']}"),
        "foretold": backed(lambda row: f"{row['foretold']} of {row['settings']}"),
    }
    return grid(scores.sort(rank(), *_WAY).to_dicts(), columns)


def _widest(row: Row) -> str:
    return "-" if row["measured_width"] is None else f"x{row['measured_width']:.2f}"


def number(value: float) -> str:
    """Return a number of positions: whole where it is."""
    return f"{value:.0f}" if value == int(value) else f"{value:.1f}"


def _study() -> pl.Expr:
    """Return a row's model, with its study where several are of one model."""
    several = pl.col("stream").n_unique().over("model") > 1
    named = pl.format("{} ({})", "model", "stream")
    return pl.when(several).then(named).otherwise("model").alias("model")


def _named(predictor: str, basis: str | None) -> str:
    parts: Sequence[str] = (predictor, basis) if basis else (predictor,)
    return ", ".join(part.replace("_", " ") for part in parts)


def _grew(row: Row | None) -> Cell:
    if row is None or row["measured_limiter"] is None:
        return Cell("-")
    growth = row["measured_growth"]
    part = "" if growth is None else f", {growth:.0%}"
    return cell(f"{row['measured_limiter']}{part}", row["row_id"])


def _prediction(way: tuple[str, str | None], setting: Row) -> Cell:
    row = setting["by_way"].get(way)
    if row is None:
        return Cell("-")
    if row["predicted"] is None and not row["unbounded"]:
        return cell("refused", row["row_id"])
    mark = "hit" if row["hit"] else "near" if row["within"] else "miss"
    limiter = f", {row['limiter']}" if row["limiter"] else ""
    value = "unbounded" if row["unbounded"] else number(row["predicted"])
    return cell(f"{value} {mark}{limiter}", row["row_id"])


def missed(composition: pl.DataFrame) -> tuple[Cell, ...]:
    """Return a sentence for each setting at which the minimum of modules' boundaries misses.

    Parameters
    ----------
    composition
        Rows of that table at one tolerance; refusals are left out.
    """
    rows = composition.filter(~pl.col("hit"), predictor=_MINIMUM).drop_nulls("predicted")
    return tuple(cell(_sentence(row), row["row_id"]) for row in rows.sort(ORDER).to_dicts())


def _sentence(row: Row) -> str:
    at = number(row["predicted"])
    named = f"{label(row, SETTING)}: the minimum names {row['limiter']} at N = {at}"
    if row["limiter_share"] is not None:
        named += f", which takes {row['limiter_share']:.0%} of T(N = {row['baseline']})"
    loosely = " (undecided)" if row["undecided"] else ""
    sign = "≥" if row["next_n"] is None else "="
    return f"{named}; {row['origin']} was N_max {sign} {row['n_max']}{loosely}{_grown(row)}."


def _grown(row: Row) -> str:
    if row["measured_limiter"] is None:
        return ""
    name = "the same module" if row["same_limiter"] else row["measured_limiter"]
    growth = row["measured_growth"]
    part = "" if growth is None else f", by {growth:.0%} of what all grew by"
    return f", and {name} grew most{part}"


def beside(time_shares: pl.DataFrame) -> Grid:
    """Return the shares of T(baseline) of the LM head and of the time between modules, by model."""
    at = time_shares.filter("newest", pl.col("n") == pl.col("baseline")).sort(*ORDER, "place")
    rows = []
    for (model,), group in at.group_by("model", maintain_order=True):
        cells = []
        for role in (HEAD, BETWEEN):
            taken = group.filter(role=role).sort("share", maintain_order=True).to_dicts()
            cells += [_share(row) for row in (taken[0], taken[-1])] if taken else [Cell("-")] * 2
        rows.append((Cell(str(model)), Cell(str(group["setting_key"].n_unique())), *cells))
    named = (HEAD, f"{BETWEEN} modules")
    ends = tuple(f"{name}, {end}" for name in named for end in ("least", "most"))
    return Grid(("model", "settings", *ends), tuple(rows))


def _share(row: Row) -> Cell:
    return cell(f"{row['share']:.1%}", row["row_id"])


class ModelSection(Struct, frozen=True, kw_only=True):
    """The section's tables and sentences."""

    answer: Grid
    ways: Grid
    missed: tuple[Cell, ...]
    beside: Grid


def model_section(frames: Mapping[str, pl.DataFrame], epsilon: float) -> ModelSection | None:
    """Return the section of a platform, None where it measured no model.

    Parameters
    ----------
    frames
        A platform's tables by name: boundaries, composition, time_shares and scores among them.
    """
    at = frames["boundaries"].filter("newest", epsilon=epsilon, module="model")
    if at.is_empty():
        return None
    composition = frames["composition"].filter(epsilon=epsilon)
    return ModelSection(
        answer=measured(at, composition),
        ways=ways(frames["scores"].filter(epsilon=epsilon, module="model")),
        missed=missed(composition),
        beside=beside(frames["time_shares"].filter(module="model")),
    )


_KEY = ("model", "platform", "attention", "moe", "routing", "batch", "context", "baseline")
_HEAD = ("model", "platform", "attention", "MoE", "routing", "b", "L", "from N")
_SPREAD = tuple(Parallel.__struct_fields__)


def models(lookup: pl.DataFrame) -> Grid:
    """Return N_max of each deployment by predictor, and the limiter of the work model's.

    What does not fit in memory has that in their place.

    Parameters
    ----------
    lookup
        Rows of that table at one tolerance.
    """
    rows = []
    by = (*_KEY, *_SPREAD, *FORMATS, "deployment")
    for _, part in headline(lookup).group_by(by, maintain_order=True):
        by_predictor = {row["predictor"]: row for row in part.to_dicts()}
        rows.append(by_predictor[PREDICTOR] | {"by": by_predictor})
    columns: dict[str, Column] = {
        **dict(zip(_HEAD, _KEY, strict=True)),
        "GPUs": lambda row: label(row, _SPREAD, "short") or "-",
        "weights / products / cache": lambda row: " / ".join(str(row[n]) for n in FORMATS),
        "entry": "deployment",
        "memory": backed(_taken),
        **{name.replace("_", " "): partial(_answer, name) for name in PREDICTORS},
        "interval": backed(lambda row: "-" if row["fits"] is False else _interval(row)),
        "limited by": lambda row: "memory" if row["fits"] is False else _limiter(row),
        "rule": lambda row: row["evidence"] or "-",
    }
    return grid(rows, columns)


def _taken(row: Row) -> str:
    """Return what a deployment takes of its platform's memory."""
    taken, whole = ("not known" if row[name] is None else gb(row[name])
                    for name in ("peak_bytes", "capacity_bytes"))  # fmt: skip
    return taken if taken == whole else f"{taken} of {whole}"


def model_files(lookup: pl.DataFrame) -> list[str]:
    """Return the ids of the model files that rows of `lookup` are made from."""
    ids = lookup["from_ids"].explode().drop_nulls().unique().sort()
    return [identifier for identifier in ids if identifier.startswith(MODELS)]


def published(lookup: pl.DataFrame) -> Grid:
    """Return the paper's deployment table as computed, beside its print."""
    head = ("model", "platform", "b", "E", "k", "routing", "idle compute", "printed", "principle",
            "printed", "over", "limited by", "with the sources' own values", "why")  # fmt: skip
    rows = []
    for row in lookup.sort("row").to_dicts():
        top_k = None if row["experts"] is None else row["top_k"] or "any"
        given = (row["model_type"], row["platform"], row["batch"], row["experts"], top_k,
                 row["routing"])  # fmt: skip
        over = row["over_prediction"]
        rows.append(
            (
                *(Cell("-" if value is None else str(value)) for value in given),
                cell(_rounded(row["idle_compute"]), row["row_id"]),
                Cell(_rounded(row["printed_idle_compute"])),
                cell(_rounded(row["principle"]), row["row_id"]),
                Cell(_rounded(row["printed_principle"])),
                Cell("-" if over is None else f"{over:g}x"),
                Cell(row["tie"] or row["limiting_term"] or "-"),
                cell(row["refusal"] or _rounded(row["resolved"]), row["row_id"]),
                Cell(row["difference"] or "-"),
            )
        )
    return Grid(head, tuple(rows))


def changes(drift: pl.DataFrame) -> Grid:
    """Return the releases in which a granularity changed, with its rule."""
    columns: dict[str, Column] = {
        "releases": lambda row: f"{row['package']} {row['previous']} to {row['version']}",
        "layer": lambda row: ", ".join(str(part) for part in _layer(row)),
        "platform": "platform",
        "change": backed("change"),
        "rule": lambda row: row["rule"] or "-",
    }
    return grid(drift.filter("differs").to_dicts(), columns)


def _layer(row: Row) -> list[object]:
    moe = row["module"] == "moe_ffn"
    return [row["model"], "MoE FFN" if moe else "attention", *([row["routing"]] if moe else [])]


def _answer(predictor: str, deployment: Row) -> Cell:
    row = deployment["by"][predictor]
    if row["fits"] is False:
        return cell(UNFIT, row["row_id"])
    if row["unbounded"]:
        return cell("unbounded", row["row_id"])
    return cell(amount(row["n_max"], censored=row["censored"]), row["row_id"])


def _interval(row: Row) -> str:
    if row["low"] is None:
        return "-"
    low, high = (f"≥ {n:g}" if n == LARGEST else f"{n:g}" for n in (row["low"], row["high"]))
    return f"{low} to {high}"


def _limiter(row: Row) -> str:
    if row["limiting_module"] is None:
        return row["refusal"] or "no limit up to there"
    return f"{row['limiting_module']}: {row['limiting_term']}"


def _rounded(value: float | None) -> str:
    return "unbounded" if value is None else f"{value:.0f}"
