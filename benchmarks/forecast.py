"""Whole models: a surface over batches and contexts, and a schedule's batches, against one answer.

Each is asked of a fresh answerer, which has read no release yet. Points are N of a deployment.
"""

import time
from collections.abc import Sequence
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


def wanted(
    model: str, attention: str, batch: Sequence[int], context: Sequence[int]
) -> DeploymentSpec:
    """Return what is asked of one model on one platform."""
    return DeploymentSpec(
        models=(model,),
        platforms=("h200",),
        attention=(attention,),
        batch=tuple(batch),
        context=tuple(context),
        routing=("balanced",),
    )


def seconds(asked: Sequence[Deployment], config: Config, kind: str) -> float:
    """Return the seconds that a surface, a schedule or one answer takes."""
    answerer = Answerer(Layout(ROOT / "results"), config, offline=True, log_alone=True)
    began = time.perf_counter()
    if kind == "surface":
        surface(asked, answerer, positions(LARGEST), EPSILON)
    elif kind == "schedule":
        forecast(asked, answerer, [EPSILON], grid=positions(LONGEST + 1),
                 predictors=["work_model"], full=False)  # fmt: skip
    else:
        forecast(asked, answerer, [EPSILON])
    return time.perf_counter() - began


def main() -> None:
    """Print the seconds of each, and their ratios to one answer."""
    config = Config(ROOT / "config")
    parts = {
        "answer": ((1,), (4096,)),
        "surface": (BATCHES, CONTEXTS),
        "schedule": (range(1, 257), (4096,)),
    }
    first = deployments(config, wanted(MODELS[0], ATTENTION[0], *parts["answer"]))
    seconds(first, config, "answer")  # imports are no part of the time
    for model in MODELS:
        for attention in ATTENTION:
            base = 0.0
            for name, (batch, context) in parts.items():
                known = deployments(config, wanted(model, attention, batch, context))
                taken = seconds(known, config, name)
                base = base or taken
                print(f"{model:14} {attention:27} {name:9}{len(known):5} conditions"
                      f"{taken:8.3f} s {taken / base:6.1f} x one answer")  # fmt: skip


if __name__ == "__main__":
    main()
