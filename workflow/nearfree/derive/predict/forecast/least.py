"""The paper's rule for a model: the minimum of its modules' boundaries (sec. 4).

It speaks of the FFN of most layers and of attention; the other modules are the work model's alone.
"""

from collections.abc import Sequence

import polars as pl

from nearfree.derive.predict.answers import Answerer
from nearfree.derive.predict.forecast.deployment import Questions
from nearfree.derive.predict.forecast.total import MINIMUM

_KEY = ["deployment", "predictor", "epsilon"]


def least_of_laws(
    questions: Questions,
    answerer: Answerer,
    baselines: Sequence[int],
    epsilons: Sequence[float],
    predictors: Sequence[str],
) -> pl.DataFrame:
    """Return the smallest of the main modules' boundaries, a row a deployment, law and tolerance.

    Where a law says nothing of one of them, it says nothing of the model.

    Parameters
    ----------
    baselines
        N of each deployment that ratios refer to: the granularity at that N counts.
    predictors
        The laws.
    """
    main = questions.uses.filter("main").join(
        pl.DataFrame(
            {"deployment": range(len(baselines)), "baseline": list(baselines)},
            schema={"deployment": pl.Int64, "baseline": pl.Int64},
        ),
        on="deployment",
    )
    frames = []
    for (baseline,), part in main.group_by("baseline", maintain_order=True):
        asked = questions.from_baseline(int(str(baseline)))
        wanted = asked.filter(pl.col("asked").is_in(part["asked"].unique().implode()))
        answers = answerer.answers(wanted, epsilons, predictors)
        frames.append(part.join(answers, on="asked", how="inner", maintain_order="left_right"))
    every = pl.concat(frames).sort(*_KEY, "place")
    reason = pl.format("{}: {}", "role", "refusal")
    refused = every.filter(pl.col("refusal").is_not_null()).group_by(_KEY, maintain_order=True)
    refusals = refused.agg(reason.first().alias("why"))
    smallest = (
        every.sort(*_KEY, "n_max", "place", maintain_order=True, nulls_last=True)
        .group_by(_KEY, maintain_order=True)
        .agg(
            pl.col("n_max", "role", "limiting_term", "evidence").first(),
            pl.col("n_max_extended").min(),
            pl.col("role").sort_by("n_max_extended").first().alias("limiting_module_extended"),
            pl.col("n_max").get(1, null_on_oob=True).alias("next"),
            pl.col("margin").first(),
        )
    )
    stands = pl.col("why").is_null()
    following = pl.min_horizontal("margin", pl.col("next") / pl.col("n_max"))
    return smallest.join(refusals, on=_KEY, how="left").select(
        *_KEY,
        pl.lit(MINIMUM).alias("composition"),
        *(
            pl.when(stands).then(value).alias(name)
            for name, value in {
                "n_max": pl.col("n_max"),
                "n_max_extended": pl.col("n_max_extended"),
                "limiting_module_extended": pl.col("limiting_module_extended"),
                "limiting_module": pl.col("role"),
                "limiting_term": pl.col("limiting_term"),
                "evidence": pl.col("evidence"),
                "margin": pl.when(pl.col("n_max").is_finite()).then(following),
            }.items()
        ),
        pl.lit(value=False).alias("in_sample"),
        pl.lit(value=False).alias("censored"),
        pl.col("why").alias("refusal"),
    )
