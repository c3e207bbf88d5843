"""Whole models: time of a surface over batches and contexts, and of a schedule, per one answer.

Each case runs with a new answerer, which has read no release yet.
"""

import time
from collections.abc import Sequence
from itertools import product
from pathlib import Path

from nearfree.config.files import Config, DeploymentSpec
from nearfree.derive.predict.answers import Answerer
from nearfree.derive.predict.forecast.deployment import Deployment
from nearfree.derive.predict.forecast.expand_deployments import deployments
from nearfree.derive.predict.forecast.forecast import forecast, positions
from nearfree.derive.predict.forecast.surface import surface
from nearfree.log.names import Layout

ROOT = Path(__file__).parents[1]
EPSILON, LARGEST, LONGEST = 0.2, 300, 16
MODELS = ("qwen3_8b", "qwen3_30b_a3b")
ATTENTION = ("flash-attn==2.8.3", "flashinfer-python==0.6.13", "xformers==0.0.34")
BATCHES = tuple(range(1, 21))
CONTEXTS = tuple(1024 * step for step in range(1, 21))


def deployment_spec(
    model: str, attention: str, batch: Sequence[int], context: Sequence[int]
) -> DeploymentSpec:
    """Return the deployments of one model on one platform."""
    return DeploymentSpec(
        models=(model,),
        platforms=("h200",),
        attention=(attention,),
        batch=tuple(batch),
        context=tuple(context),
        routing=("balanced",),
    )


def answer_s(conditions: Sequence[Deployment], config: Config, kind: str) -> float:
    """Return the seconds for a surface, a schedule or one answer, by `kind`."""
    answerer = Answerer(Layout(ROOT / "results"), config, offline=True, log_alone=True)
    start_s = time.perf_counter()
    if kind == "surface":
        surface(conditions, answerer, positions(LARGEST), EPSILON)
    elif kind == "schedule":
        forecast(conditions, answerer, [EPSILON], grid=positions(LONGEST + 1),
                 predictors=["work_model"], full=False)  # fmt: skip
    else:
        forecast(conditions, answerer, [EPSILON])
    return time.perf_counter() - start_s


def main() -> None:
    """Print the seconds of each, and their ratios to one answer."""
    config = Config(ROOT / "config")
    cases = {
        "answer": ((1,), (4096,)),
        "surface": (BATCHES, CONTEXTS),
        "schedule": (range(1, 257), (4096,)),
    }
    warm_up = deployments(config, deployment_spec(MODELS[0], ATTENTION[0], *cases["answer"]))
    answer_s(warm_up, config, "answer")  # so that imports are not timed
    for model, attention in product(MODELS, ATTENTION):
        one_answer_s = 0.0
        for name, (batch, context) in cases.items():
            conditions = deployments(config, deployment_spec(model, attention, batch, context))
            elapsed_s = answer_s(conditions, config, name)
            one_answer_s = one_answer_s or elapsed_s
            print(
                f"{model:14} {attention:27} {name:9}{len(conditions):5} conditions"
                f"{elapsed_s:8.3f} s {elapsed_s / one_answer_s:6.1f} x one answer"
            )


if __name__ == "__main__":
    main()
