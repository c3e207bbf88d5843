"""Deployments of this repository's models and platforms, under any condition."""

from collections.abc import Sequence
from functools import cache
from itertools import product
from typing import Any

from nearfree.backends.names import backend
from nearfree.config.files import BOUNDS, Config
from nearfree.decoders.config_file import find_file, read_decoder
from nearfree.derive.predict.answers import Answerer
from nearfree.derive.predict.forecast.deployment import Deployment
from nearfree.derive.predict.forecast.forecast import Forecast, forecast

from derive.questions import LOG, ROOT

CONFIG = Config(ROOT / "config")
ANSWERER = Answerer(LOG, CONFIG, offline=True, log_alone=True)
DENSE, SPARSE = "qwen3_8b", ("qwen3_30b_a3b", "ling_2_0_mini", "mixtral_8x7b")
MODELS = (DENSE, *SPARSE)
EPSILONS = (0.05, 0.2, 0.5)
GRID = list(range(1, 97))
NO_PHI = (
    "qkv projection, attention, output projection, Dense FFN, LM head: no phi of cpu for bfloat16"
)
"""Why a dense model has no T(N) on a CPU that was not probed: every module, and what it lacks."""


def deployment(
    model: str = DENSE, routing: str = "balanced", *, attention: str = "flash-attn==2.8.3",
    moe: str = "vllm==0.20.2", **changes: Any,
) -> Deployment:  # fmt: skip
    """Return a deployment of a named model on an H800, some of its fields changed."""
    decoder = read_decoder(find_file(CONFIG.folder, model))
    sparse = decoder.experts is not None
    fields: dict[str, Any] = {
        "decoder": decoder,
        "platform": "h800",
        "attention": backend(attention),
        "moe": backend(moe) if sparse else None,
        "routing": routing if sparse else None,
    }
    return Deployment(**(fields | changes))


def forecast_of(
    *deployments: Deployment, grid: Sequence[int] = GRID, epsilon: float = 0.2, **rest: Any
) -> Forecast:
    """Return all predictors' answers on deployments, from this repository's log."""
    return forecast(deployments, ANSWERER, [epsilon], grid=grid, **rest)


CONDITIONS = product(("h20", "h800", "b200"), (1, 8, 64), (512, 16384))
POOL = [
    deployment(model, routing, platform=platform, batch=batch, context=context)
    for platform, batch, context in CONDITIONS
    for model, routing in [(DENSE, BOUNDS[0]), *product(SPARSE, BOUNDS)]
]
"""Every model, both routings, and some platforms and conditions."""


@cache
def pool() -> Forecast:
    """Return a forecast of them all."""
    return forecast(POOL, ANSWERER, EPSILONS, grid=GRID)
