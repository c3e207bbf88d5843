"""Answers of every predictor on deployments, from N = 1 and from the paper's baseline."""

from collections.abc import Sequence

import polars as pl
from msgspec import Struct

from nearfree.core.modules.collective import COLLECTIVE
from nearfree.core.modules.dense_ffn import GEMM
from nearfree.core.modules.registry import KINDS
from nearfree.core.predictors import LAWS, PREDICTORS, WORK_MODEL
from nearfree.decoders.ranks.attention_uses import base_of
from nearfree.decoders.ranks.collectives import ROLES
from nearfree.derive.predict.answers import Answerer
from nearfree.derive.predict.forecast.deployment import Deployment, Questions
from nearfree.derive.predict.forecast.exits import total_exits
from nearfree.derive.predict.forecast.total import MINIMUM, SUM, Total, total
from nearfree.derive.predict.forecast.total import ROLES as STEP_ROLES

LARGEST = 512
"""The largest N of the default grid."""
CURVE = ("n", "ratio", "latency_us")
"""The columns of a curve before the shares of its modules."""
ANSWERS: dict[str, pl.DataType | type[pl.DataType]] = {
    "deployment": pl.Int64,
    "baseline": pl.Int64,
    "predictor": pl.String,
    "composition": pl.String,
    "epsilon": pl.Float64,
    "n_max": pl.Float64,
    "n_max_extended": pl.Float64,
    "limiting_module_extended": pl.String,
    "low": pl.Float64,
    "high": pl.Float64,
    "censored": pl.Boolean,
    "limiting_module": pl.String,
    "limiting_term": pl.String,
    "evidence": pl.String,
    "margin": pl.Float64,
    "constants": pl.String,
    "calibration": pl.List(pl.String),
    "regime": pl.String,
    "in_sample": pl.Boolean,
    "refusal": pl.String,
}
"""A predictor's answer on a deployment at a tolerance: a value (+inf: unbounded) or a refusal.
`censored`: the value is the grid's end, and nothing limits up to there."""
_KEY = ["deployment", "predictor", "epsilon"]


class Forecast(Struct, frozen=True, kw_only=True):
    """Answers on deployments: T(N) of their modules, and boundaries by predictor."""

    deployments: Sequence[Deployment]
    total: Total
    answers: pl.DataFrame

    def curve(self, deployment: int) -> pl.DataFrame:
        """Return T(N) of a deployment over its grid: n, ratio = T(N) / T(1), latency_us, shares.

        The columns after these are its modules' shares of T(N), by role. Empty where T(N) is not
        known.
        """
        model = self.total.model_us[deployment]
        shares = {
            role: self.total.latency_us[deployment, place] / model
            for place, role in self.total.roles[deployment].items()
        }
        values = (self.total.grid, model / model[0], model)
        frame = pl.DataFrame(dict(zip(CURVE, values, strict=True)) | shares)
        return frame if self.total.refusals[deployment] is None else frame.clear()


def positions(largest: int = LARGEST) -> list[int]:
    """Return the default grid: all N from 1 to `largest`."""
    return list(range(1, largest + 1))


def forecast(
    deployments: Sequence[Deployment],
    answerer: Answerer,
    epsilons: Sequence[float],
    *,
    grid: Sequence[int] | None = None,
    predictors: Sequence[str] = PREDICTORS,
    full: bool = True,
) -> Forecast:
    """Return the answers of predictors on deployments.

    Parameters
    ----------
    grid
        N, rising from 1; all up to LARGEST by default.
    predictors
        Laws, and the work model, whose T(N) is always computed.
    full
        Whether to answer from the paper's baseline, too, where it is not 1.
    """
    questions = Questions(deployments, grid or positions())
    latency = total(questions, answerer)
    baselines_of = [[1] * len(deployments)]
    if full:
        baselines_of.append([deployment.full_baseline for deployment in deployments])
    laws = [name for name in predictors if name in LAWS]
    frames = [pl.DataFrame(schema=ANSWERS)]
    for baselines in baselines_of:
        parts = []
        if laws:
            parts.append(minimum_of_laws(questions, answerer, baselines, epsilons, laws))
        if WORK_MODEL in predictors:
            parts += [
                total_exits(latency, baselines, epsilons, composition)
                for composition in (SUM, MINIMUM)
            ]
        if parts:
            frames.append(
                pl.concat(parts, how="diagonal").join(_baseline_frame(baselines), on="deployment")
            )
    answers = pl.concat(frames, how="diagonal").select(
        pl.col(name).cast(dtype) for name, dtype in ANSWERS.items()
    )
    answers = answers.unique(
        ["deployment", "baseline", "predictor", "composition", "epsilon"], maintain_order=True
    ).sort(
        "deployment",
        "baseline",
        pl.col("predictor").cast(pl.Enum(PREDICTORS)),
        pl.col("composition") != SUM,
        "epsilon",
        maintain_order=True,
    )
    return Forecast(deployments=deployments, total=latency, answers=answers)


def _baseline_frame(baselines: Sequence[int]) -> pl.DataFrame:
    """Return the baseline of each deployment, by its place."""
    columns = {"deployment": range(len(baselines)), "baseline": list(baselines)}
    return pl.DataFrame(columns, schema=dict.fromkeys(columns, pl.Int64))


def minimum_of_laws(
    questions: Questions,
    answerer: Answerer,
    baselines: Sequence[int],
    epsilons: Sequence[float],
    predictors: Sequence[str],
) -> pl.DataFrame:
    """Return the smallest of the main modules' boundaries, by deployment, law and tolerance.

    This is the paper's rule for a model (sec. 4). It covers the FFN of most layers and attention;
    only the work model covers other modules. If a law refuses one of them, it refuses the model.
    Granularities are taken at each deployment's baseline N.
    """
    main = questions.uses.filter("main").join(_baseline_frame(baselines), on="deployment")
    frames = []
    for (baseline,), part in main.group_by("baseline", maintain_order=True):
        frame = questions.from_baseline(int(str(baseline)))
        part_questions = frame.filter(pl.col("asked").is_in(part["asked"].unique().implode()))
        answers = answerer.answers(part_questions, epsilons, predictors)
        frames.append(part.join(answers, on="asked", how="inner", maintain_order="left_right"))
    module_answers = pl.concat(frames).sort(*_KEY, "place")
    reason = pl.format("{}: {}", "role", "refusal")
    refused = module_answers.filter(pl.col("refusal").is_not_null()).group_by(
        _KEY, maintain_order=True
    )
    refusals = refused.agg(reason.first().alias("refusal"))
    smallest = (
        module_answers.sort(*_KEY, "n_max", "place", maintain_order=True, nulls_last=True)
        .group_by(_KEY, maintain_order=True)
        .agg(
            pl.col("n_max", "limiting_term", "evidence", "margin").first(),
            pl.col("role").first().alias("limiting_module"),
            pl.col("n_max_extended").min(),
            pl.col("role").sort_by("n_max_extended").first().alias("limiting_module_extended"),
            pl.col("n_max").get(1, null_on_oob=True).alias("next"),
        )
    )
    following = pl.min_horizontal("margin", pl.col("next") / pl.col("n_max"))
    margin = pl.when(pl.col("n_max").is_finite()).then(following)
    values = smallest.with_columns(margin.alias("margin")).drop("next")
    return values.join(refusals, on=_KEY, how="left").select(
        *_KEY,
        pl.lit(MINIMUM).alias("composition"),
        pl.when(pl.col("refusal").is_null()).then(pl.col(*values.columns[len(_KEY) :])),
        pl.lit(value=False).alias("in_sample"),
        pl.lit(value=False).alias("censored"),
        "refusal",
    )


def headline(answers: pl.DataFrame) -> pl.DataFrame:
    """Return the main answers: of the work model its sum, of each law the minimum over modules."""
    laws = pl.col("predictor").is_in(LAWS) & (pl.col("composition") == MINIMUM)
    return answers.filter(laws | (pl.col("composition") == SUM))


_HOST_KNOBS = (
    "engine and its version (what it fuses and captures in graphs)",
    "batch (each request costs the host)",
)


_TITLED = {kind.title: kind for kind in KINDS.values()}


def knobs(limiting_module: str) -> tuple[str, ...]:
    """Return the parameters that move the boundary of a limiting module, the strongest first."""
    role = base_of(limiting_module)
    if role in STEP_ROLES:
        return _HOST_KNOBS
    kind = COLLECTIVE if role in ROLES else _TITLED.get(role, GEMM)
    return kind.knobs or GEMM.knobs
