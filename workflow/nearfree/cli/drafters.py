"""The drafter of a schedule: its deployments, its cost, and reasons against it."""

import argparse
from collections.abc import Sequence

from msgspec import UNSET, structs

from nearfree.backends.names import attention_backend
from nearfree.cli.deployment_options import make_spec
from nearfree.config.files import Config
from nearfree.core.precision import PLAIN, Dtype
from nearfree.decoders.config_file import find_file, read_drafter
from nearfree.decoders.model_file import find_drafter_file, find_model_file
from nearfree.decoders.ranks.engines import SGLANG, VLLM
from nearfree.derive.predict.answers import Answerer
from nearfree.derive.predict.forecast.attention_choice import attention_refusals
from nearfree.derive.predict.forecast.deployment import Deployment, Questions
from nearfree.derive.predict.forecast.draft import (
    as_head,
    as_own,
    draft_model_grid,
    drafter_shares,
    model_shares,
)
from nearfree.derive.predict.forecast.expand_deployments import deployments
from nearfree.derive.predict.forecast.forecast import Forecast
from nearfree.derive.predict.forecast.total import total
from nearfree.derive.schedule.doubts import drafter_warnings, state_warnings
from nearfree.derive.schedule.engines import ENGINES
from nearfree.errors import ConfigError, RefusedError
from nearfree.hub.model_name import resolve_model
from nearfree.show.text.schedule import ratio_by_batch

OWN = "own"
"""The `--drafter` that is the model's own multi-token-prediction layer."""


def drafter_cache(args: argparse.Namespace, target: Deployment) -> Dtype | None:
    """Return the format in which a drafter caches instead of its own, None where it has its own.

    An engine's option for the cache holds for both of them, in vLLM also what the target's files
    say of it. Sources: vllm 0.33.0, vllm/config/speculative.py:395-403 and 448-451; sglang 0.5.23,
    sglang/srt/mem_cache/kv_cache_dtype.py:45-58.
    """
    cache = target.formats.kv
    named = args.engine in {VLLM.name, SGLANG.name} and (args.kv_dtype or args.dtype)
    from_files = args.engine == VLLM.name and cache not in PLAIN
    return cache if named or from_files else None


def drafter_deployments(
    args: argparse.Namespace, config: Config, largest_batch: int, cache: Dtype | None = None
) -> Sequence[Deployment]:
    """Return the deployments of the drafting model or head, by batch size from 1 on.

    The drafter lies on the last pipeline stage only (vllm-project/vllm pulls 50514 and 53575). The
    backend of --attention runs it if it has kernels for its layers, else the engine's default does.

    Parameters
    ----------
    cache
        The format of its cache, as `drafter_cache` gives it; None is that of its files.

    Raises
    ------
    ConfigError
        The drafter is unknown, and the error names `own`, too; or it is refused by its files or on
        these GPUs, and the error names it.
    """
    if args.drafter in {None, OWN}:
        return []
    drafter = argparse.Namespace(**vars(args) | {"model": [args.drafter]})
    try:
        spec = make_spec(drafter, batch=range(1, largest_batch + 1), moe=ENGINES[args.engine].moe)
    except ConfigError as error:
        remedy = f"{OWN} is the model's own multi-token-prediction layer. {error.remedy}"
        raise ConfigError(error.what, remedy=remedy) from error
    formats = dict.fromkeys(("dtype", "weights", "activations", "moe_backend"))
    decoder = find_drafter_file(config.folder, spec.models[0]).decoder
    if decoder and any(
        any(attention_refusals(decoder, attention_backend(attention)))
        for attention in spec.attention
    ):
        spec = structs.replace(spec, attention=())
    if spec.pp > 1:
        spec = structs.replace(spec, pp=1, gpus=None)
    spec = structs.replace(spec, **formats, kv_dtype=cache, ep=1)
    try:
        return deployments(config, spec, drafters=True)
    except RefusedError as error:
        if any(refusal.file for refusal in error.refusals):
            raise
        remedy = f"{error.remedy}; or give another drafter, or what a draft costs by --draft-cost"
        raise ConfigError(f"{args.drafter} drafts: {error.what}", remedy=remedy) from error


def draft_costs(
    args: argparse.Namespace,
    answers: Forecast,
    answerer: Answerer,
    drafters: Sequence[Deployment],
) -> float | dict[int, list[float]]:
    """Return the cost of drafting in T(1): per token, or by batch size and draft length."""
    if args.drafter is None:
        return float(args.draft_cost or 0.0)
    ratio_by_batch(answers)  # raises where T(N) is unknown
    grid, steps = answers.total.grid.tolist(), answerer.engine_steps
    if args.drafter == OWN:
        layers = [as_own(query) for query in answers.deployments]
        drafter_total = total(Questions(layers, grid), answerer)
        return drafter_shares(answers.total, answers.deployments, drafter_total, layers, steps)
    drafters = drafters[: len(answers.deployments)]
    if drafters[0].decoder.states is not UNSET:
        heads = [as_head(query, answers.deployments[0]) for query in drafters]
        drafter_total = total(Questions(heads, grid), answerer)
        return drafter_shares(answers.total, answers.deployments, drafter_total, heads, steps)
    drafter_total = total(Questions(drafters, draft_model_grid(grid)), answerer)
    return model_shares(answers.total, answers.deployments, drafter_total, drafters)


def names_head(args: argparse.Namespace, config: Config) -> bool:
    """Return whether --drafter names a head, which reads the target model's hidden states."""
    file = find_file(config.folder, resolve_model(args.config, args.drafter))
    return read_drafter(file).states is not UNSET


def doubts(args: argparse.Namespace, config: Config) -> list[str]:
    """Return the reasons against the drafter of --drafter, and against any drafter of the model."""
    model = find_model_file(config.folder, resolve_model(args.config, args.model[0]))
    reasons = list(state_warnings(args.engine, model))
    if args.drafter is None:
        return reasons
    drafter = None
    if args.drafter != OWN:
        drafter = find_drafter_file(config.folder, resolve_model(args.config, args.drafter))
    return [*reasons, *drafter_warnings(args.engine, model, drafter)]
