"""The report's sections on models: measured and predicted N_max, the lookup table, releases."""

from collections.abc import Mapping, Sequence
from functools import partial

import polars as pl
from msgspec import Struct

from nearfree.core.label import AXES, NESTED, label, ordered
from nearfree.core.modules.registry import KINDS
from nearfree.core.predictors import PREDICTORS, WORK_MODEL
from nearfree.core.setting import FIELDS
from nearfree.decoders.ranks.modules import BETWEEN, HEAD
from nearfree.derive.outlook.about import MODELS, UNFIT
from nearfree.derive.predict.forecast.forecast import LARGEST, headline
from nearfree.show.figures.models import CURVE
from nearfree.show.figures.panels import PARALLEL_FIELDS
from nearfree.show.figures.theme import rank
from nearfree.show.page.inline import FORMATS
from nearfree.show.page.sections import Cell, Column, Grid, Row, backed, cell, grid, interval, n_max
from nearfree.show.text.forecast import NO_LIMIT, amount
from nearfree.show.text.memory import gb

SETTING = ("model", *ordered(AXES, "batch", "context", "routing"))
"""The columns in which a model's settings differ."""
ORDER = ("model", *NESTED, "setting_key")
_PREDICTOR_KEY = ("predictor", "basis")
_MINIMUM = "modules_minimum"
"""The predictor whose misses the section explains."""


def measured_boundaries(boundaries: pl.DataFrame, composition: pl.DataFrame) -> Grid:
    """Return each model's boundary, the module whose time grew most, and the predictions.

    A predictor that refuses every setting has no column.

    Parameters
    ----------
    boundaries
        Newest boundaries of measured models at one tolerance.
    composition
        Rows of the table `composition` at the same tolerance.
    """
    predictions: dict[tuple[str, ...], dict[tuple[str, str | None], Row]] = {}
    for row in composition.to_dicts():
        key = tuple(row[name] for name in CURVE)
        predictions.setdefault(key, {})[row["predictor"], row["basis"]] = row
    answered = composition.drop_nulls("predicted")
    answering_keys = answered.select(_PREDICTOR_KEY).unique().sort(rank(), *_PREDICTOR_KEY).rows()
    rows = [
        row | {"by_predictor": predictions.get(tuple(row[name] for name in CURVE), {})}
        for row in boundaries.sort(ORDER).with_columns(_study()).to_dicts()
    ]
    columns: dict[str, Column] = {
        **{FIELDS[name].symbol: name for name in SETTING if boundaries[name].is_not_null().any()},
        "from N": backed("baseline"),
        "N_max": backed(n_max),
        "interval": backed(interval),
        "verdict": "verdict",
        "grew most, part of the growth": lambda row: _growth_cell(
            next(iter(row["by_predictor"].values()), None)
        ),
        **{_predictor_name(*key): partial(_prediction, key) for key in answering_keys},
    }
    return grid(rows, columns)


def predictor_scores(scores: pl.DataFrame) -> Grid:
    """Return each predictor's counts of answers, hits and matching limiters on models.

    Parameters
    ----------
    scores
        Rows of the table `scores` for models, of one platform, at one tolerance.
    """
    columns: dict[str, Column] = {
        "predictor": lambda row: _predictor_name(row["predictor"], row["basis"]),
        "settings": backed("settings"),
        "answered": backed(lambda row: f"{row['answered']} of {row['settings']}"),
        "hits": backed(lambda row: f"{row['hits']} of {row['settings']}"),
        "within the interval": backed(lambda row: f"{row['within']} of {row['settings']}"),
        "widest measured interval": backed(
            lambda row: "-" if row["measured_width"] is None else f"x{row['measured_width']:.2f}"
        ),
        "same limiter": backed(lambda row: f"{row['same_limiter']} of {row['limiters']}"),
        "foretold": backed(lambda row: f"{row['foretold']} of {row['settings']}"),
    }
    return grid(scores.sort(rank(), *_PREDICTOR_KEY).to_dicts(), columns)


def position_text(value: float) -> str:
    """Return a number of positions as text, without decimals where it is whole."""
    return f"{value:.0f}" if value == int(value) else f"{value:.1f}"


def _study() -> pl.Expr:
    """Return the name of a row's model, with its study where a model has several studies."""
    several_studies = pl.col("stream").n_unique().over("model") > 1
    with_study = pl.format("{} ({})", "model", "stream")
    return pl.when(several_studies).then(with_study).otherwise("model").alias("model")


def _predictor_name(predictor: str, basis: str | None) -> str:
    parts: Sequence[str] = (predictor, basis) if basis else (predictor,)
    return ", ".join(part.replace("_", " ") for part in parts)


def _growth_cell(row: Row | None) -> Cell:
    if row is None or row["measured_limiter"] is None:
        return Cell("-")
    growth = row["measured_growth"]
    share = "" if growth is None else f", {growth:.0%}"
    return cell(f"{row['measured_limiter']}{share}", row["row_id"])


def _prediction(key: tuple[str, str | None], setting: Row) -> Cell:
    row = setting["by_predictor"].get(key)
    if row is None:
        return Cell("-")
    if row["predicted"] is None and not row["unbounded"]:
        return cell("refused", row["row_id"])
    mark = "hit" if row["hit"] else "near" if row["within"] else "miss"
    limiter = f", {row['limiter']}" if row["limiter"] else ""
    value = "unbounded" if row["unbounded"] else position_text(row["predicted"])
    return cell(f"{value} {mark}{limiter}", row["row_id"])


def misses(composition: pl.DataFrame) -> tuple[Cell, ...]:
    """Return a sentence per setting at which the minimum of the modules' boundaries misses.

    A minimum within the measured interval is not known to miss, and is left out.

    Parameters
    ----------
    composition
        Rows of the table `composition` at one tolerance; refusals are left out.
    """
    missed = composition.filter(~pl.col("hit"), ~pl.col("within"), predictor=_MINIMUM)
    rows = missed.drop_nulls("predicted")
    return tuple(cell(_sentence(row), row["row_id"]) for row in rows.sort(ORDER).to_dicts())


def _sentence(row: Row) -> str:
    n = position_text(row["predicted"])
    text = f"{label(row, SETTING)}: the minimum names {row['limiter']} at N = {n}"
    if row["limiter_share"] is not None:
        text += f", which takes {row['limiter_share']:.0%} of T(N = {row['baseline']})"
    undecided_note = " (undecided)" if row["undecided"] else ""
    sign = "≥" if row["next_n"] is None else "="
    actual = f"{row['origin']} N_max {sign} {row['n_max']}{undecided_note}"
    return f"{text}; {actual}{_growth_clause(row)}."


def _growth_clause(row: Row) -> str:
    if row["measured_limiter"] is None:
        return ""
    name = "the same module" if row["same_limiter"] else row["measured_limiter"]
    growth = row["measured_growth"]
    share = "" if growth is None else f", by {growth:.0%} of the total growth"
    return f", and {name} grew most{share}"


def uncovered(time_shares: pl.DataFrame) -> Grid:
    """Return the shares of T(baseline) that the paper's law leaves out, by model.

    These are the LM head and the time between modules.
    """
    at_baseline = pl.col("n") == pl.col("baseline")
    baseline_rows = time_shares.filter("newest", at_baseline).sort(*ORDER, "place")
    rows = []
    for (model,), group in baseline_rows.group_by("model", maintain_order=True):
        cells = []
        for role in (HEAD, BETWEEN):
            role_rows = group.filter(role=role).sort("share", maintain_order=True).to_dicts()
            ends = (role_rows[0], role_rows[-1]) if role_rows else ()
            shares = [cell(f"{row['share']:.1%}", row["row_id"]) for row in ends]
            cells += shares or [Cell("-")] * 2
        rows.append((Cell(str(model)), Cell(str(group["setting_key"].n_unique())), *cells))
    roles = (HEAD, f"{BETWEEN} modules")
    heads = tuple(f"{name}, {end}" for name in roles for end in ("least", "most"))
    return Grid(("model", "settings", *heads), tuple(rows))


class ModelSection(Struct, frozen=True, kw_only=True):
    """The section's tables and sentences."""

    boundaries: Grid
    predictor_scores: Grid
    misses: tuple[Cell, ...]
    uncovered: Grid


def model_section(frames: Mapping[str, pl.DataFrame], epsilon: float) -> ModelSection | None:
    """Return the section of a platform, None where it measured no model.

    Parameters
    ----------
    frames
        A platform's tables by name, with boundaries, composition, time_shares and scores.
    """
    newest = frames["boundaries"].filter("newest", epsilon=epsilon, module="model")
    if newest.is_empty():
        return None
    composition = frames["composition"].filter(epsilon=epsilon)
    return ModelSection(
        boundaries=measured_boundaries(newest, composition),
        predictor_scores=predictor_scores(frames["scores"].filter(epsilon=epsilon, module="model")),
        misses=misses(composition),
        uncovered=uncovered(frames["time_shares"].filter(module="model")),
    )


_KEY = ("model", "platform", "attention", "moe", "routing", "batch", "context", "baseline")
_HEAD = ("model", "platform", "attention", "MoE", "routing", "b", "L", "from N")


def models(lookup: pl.DataFrame) -> Grid:
    """Return N_max of each deployment by predictor, and the limiter by the work model.

    A deployment that does not fit in memory says so instead.

    Parameters
    ----------
    lookup
        Rows of the table `lookup` at one tolerance.
    """
    rows = []
    keys = (*_KEY, *PARALLEL_FIELDS, *FORMATS, "deployment")
    for _, group in headline(lookup).group_by(keys, maintain_order=True):
        by_predictor = {row["predictor"]: row for row in group.to_dicts()}
        rows.append(by_predictor[WORK_MODEL] | {"by": by_predictor})
    columns: dict[str, Column] = {
        **dict(zip(_HEAD, _KEY, strict=True)),
        "GPUs": lambda row: label(row, PARALLEL_FIELDS, "short") or "-",
        "weights / products / cache": lambda row: " / ".join(str(row[n]) for n in FORMATS),
        "entry": "deployment",
        "memory": backed(_memory_text),
        **{name.replace("_", " "): partial(_answer, name) for name in PREDICTORS},
        "interval": backed(lambda row: "-" if row["fits"] is False else _interval(row)),
        "limited by": lambda row: "memory" if row["fits"] is False else _limiter(row),
        "rule": lambda row: row["evidence"] or "-",
    }
    return grid(rows, columns)


def _memory_text(row: Row) -> str:
    """Return the memory that a deployment needs, of its platform's capacity."""
    peak, capacity = ("not known" if row[name] is None else gb(row[name])
                    for name in ("peak_bytes", "capacity_bytes"))  # fmt: skip
    return peak if peak == capacity else f"{peak} of {capacity}"


def model_files(lookup: pl.DataFrame) -> list[str]:
    """Return the ids of the model files from which rows of `lookup` are computed."""
    ids = lookup["from_ids"].explode().drop_nulls().unique().sort()
    return [identifier for identifier in ids if identifier.startswith(MODELS)]


def published(lookup: pl.DataFrame) -> Grid:
    """Return the paper's deployment table, computed values beside the printed ones."""
    head = ("model", "platform", "b", "E", "k", "routing",
            "idle compute", "idle compute, printed", "principle", "principle, printed",
            "idle compute / principle", "limited by",
            "principle, values from the sources", "reason of a difference")  # fmt: skip
    rows = []
    for row in lookup.sort("row").to_dicts():
        top_k = None if row["experts"] is None else row["top_k"] or "any"
        setting = (row["model_type"], row["platform"], row["batch"], row["experts"], top_k,
                 row["routing"])  # fmt: skip
        over = row["over_prediction"]
        rows.append(
            (
                *(Cell("-" if value is None else str(value)) for value in setting),
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
    """Return the pairs of releases between which a granularity changed, with its rule."""
    columns: dict[str, Column] = {
        "releases": lambda row: f"{row['package']} {row['previous']} to {row['version']}",
        "layer": lambda row: ", ".join(str(part) for part in _layer(row)),
        "platform": "platform",
        "change": backed("change"),
        "rule": lambda row: row["rule"] or "-",
    }
    return grid(drift.filter("differs").to_dicts(), columns)


def _layer(row: Row) -> list[object]:
    kind = KINDS[row["module"]]
    return [row["model"], kind.title, *([row["routing"]] if kind.routed else [])]


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
        return row["refusal"] or NO_LIMIT
    return f"{row['limiting_module']}: {row['limiting_term']}"


def _rounded(value: float | None) -> str:
    return "unbounded" if value is None else f"{value:.0f}"
