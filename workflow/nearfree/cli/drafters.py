"""What drafts in a schedule: its deployments, what it costs, and what speaks against it."""

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING

from nearfree.cli.deployment_options import make_spec

if TYPE_CHECKING:
    from nearfree.config.files import Config
    from nearfree.derive.predict.answers import Answerer
    from nearfree.derive.predict.forecast.deployment import Deployment
    from nearfree.derive.predict.forecast.forecast import Forecast

OWN = "own"
"""What drafts where it is the model's own layer for further tokens."""


def drafting_models(
    args: argparse.Namespace, config: "Config", most: int
) -> "Sequence[Deployment]":
    """Return the deployments of the model or head that drafts, by batch size from 1 on.

    It lies on the last pipeline stage alone (vllm-project/vllm pulls 50514 and 53575). Attention
    that is named runs it where it has kernels for its layers, else the engine's own does.
    """
    from msgspec import structs

    from nearfree.backends.names import attention_backend
    from nearfree.decoders.model_file import find_drafter_file
    from nearfree.derive.predict.forecast.attention_choice import untaken
    from nearfree.derive.predict.forecast.expand_deployments import deployments
    from nearfree.derive.schedule.engines import ENGINES

    if args.drafter in {None, OWN}:
        return []
    drafter = argparse.Namespace(**vars(args) | {"model": [args.drafter]})
    spec = make_spec(drafter, batch=range(1, most + 1), moe=ENGINES[args.engine].moe)
    formats = dict.fromkeys(("dtype", "weights", "activations", "kv_dtype", "moe_backend"))
    decoder = find_drafter_file(config.folder, spec.models[0]).decoder
    if decoder and any(any(untaken(decoder, attention_backend(each))) for each in spec.attention):
        spec = structs.replace(spec, attention=())
    if spec.pp > 1:
        spec = structs.replace(spec, pp=1, gpus=None)
    return deployments(config, structs.replace(spec, **formats, ep=1), drafters=True)


def draft_costs(
    args: argparse.Namespace,
    answers: "Forecast",
    answerer: "Answerer",
    drafting: "Sequence[Deployment]",
) -> "float | dict[int, list[float]]":
    """Return what drafting costs: a share of T(1) a token, or by batch size and draft length."""
    from msgspec import UNSET

    from nearfree.derive.predict.forecast.deployment import Questions
    from nearfree.derive.predict.forecast.draft import (
        as_head,
        as_own,
        drafter_shares,
        drafting_grid,
        model_shares,
    )
    from nearfree.derive.predict.forecast.total import total
    from nearfree.show.text.schedule import ratio_by_batch

    if args.drafter is None:
        return float(args.draft_cost or 0.0)
    ratio_by_batch(answers)  # refuses a T(N) that is not known
    grid, steps = answers.total.grid.tolist(), answerer.engine_steps
    if args.drafter == OWN:
        layers = [as_own(each) for each in answers.deployments]
        drafted = total(Questions(layers, grid), answerer)
        return drafter_shares(answers.total, answers.deployments, drafted, layers, steps)
    drafting = drafting[: len(answers.deployments)]
    if drafting[0].decoder.states is not UNSET:
        heads = [as_head(each, answers.deployments[0]) for each in drafting]
        drafted = total(Questions(heads, grid), answerer)
        return drafter_shares(answers.total, answers.deployments, drafted, heads, steps)
    drafted = total(Questions(drafting, drafting_grid(grid)), answerer)
    return model_shares(answers.total, answers.deployments, drafted, drafting)


def names_head(args: argparse.Namespace, config: "Config") -> bool:
    """Return whether --drafter names a head, which reads the model's states, and no model."""
    from msgspec import UNSET

    from nearfree.decoders.config_file import find_file, read_drafter
    from nearfree.hub.asked import asked_model

    file = find_file(config.folder, asked_model(args.config, args.drafter))
    return read_drafter(file).states is not UNSET


def doubts(args: argparse.Namespace, config: "Config") -> list[str]:
    """Return what speaks against the drafter that is asked for, and against any of this model."""
    from nearfree.decoders.model_file import find_drafter_file, find_model_file
    from nearfree.derive.schedule.doubts import drafter_doubts, state_doubts
    from nearfree.hub.asked import asked_model

    model = find_model_file(config.folder, asked_model(args.config, args.model[0]))
    found = list(state_doubts(args.engine, model))
    if args.drafter is None:
        return found
    drafter = None
    if args.drafter != OWN:
        drafter = find_drafter_file(config.folder, asked_model(args.config, args.drafter))
    return [*found, *drafter_doubts(args.engine, model, drafter)]
