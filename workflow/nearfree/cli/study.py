"""`nearfree plan`, `foretell` and `retake`: studies before they are measured."""

import argparse
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

from nearfree.cli.common import (
    TAKE,
    argument,
    command,
    config_of,
    layout_of,
    local_scope,
    print_seal,
)

if TYPE_CHECKING:
    from nearfree.config.files import Config
    from nearfree.core.plan import Order


@command(
    "plan",
    argument("platform", help="a platform of config/platforms.yaml"),
    argument(
        "study", nargs="?", help="a study of config/studies.yaml (default: all, and the probe)"
    ),
)
def run_plan(args: argparse.Namespace) -> int:
    """Print plans as JSON, for another environment or another machine.

    With a study it prints its plan, for `nearfree measure --plan -`. Without one it prints the
    orders of the platform's probe and of all its studies, one per line, for `nearfree campaign`.

    Example: nearfree plan h200 > orders
    """
    from msgspec import json

    from nearfree.config.plans import Plans
    from nearfree.core.plan import write_orders
    from nearfree.hardware.platforms import resolve

    config = config_of(args)
    scope = resolve(config.platforms, args.platform)
    if args.study:
        print(json.encode(Plans(config, scope).measure(args.study)).decode())
    else:
        print(write_orders(_orders(config, scope)), end="")
        if nothing := Plans(config, scope).nothing:
            print(nothing, file=sys.stderr)
    return 0


def _orders(config: "Config", scope: str) -> "Iterator[Order]":
    from nearfree.config.plans import Plans
    from nearfree.core.plan import Order
    from nearfree.hardware.platforms import driver_names

    platform = config.platform(scope)
    device, names = platform.kind, driver_names(scope, platform)
    for stream, plan in Plans(config, scope).all().items():
        take = config.take(scope, stream)
        yield Order(scope=scope, stream=stream, take=take, device=device, plan=plan, names=names)


@command(
    "foretell",
    argument("platform", help="a platform of `here`"),
    argument("study", help="a study of a model; the stream of its events is STUDY_foretold"),
    TAKE,
)
def run_foretell(args: argparse.Namespace) -> int:
    """Record the predictions for a model's study before the model is measured.

    The sum of the modules' times and the paper's minimum rule use the isolated modules (the stream
    STUDY_modules); the paper's law uses the blocks and tiles that those runs counted.

    Example: nearfree foretell cpu qwen3_8b_cpu
    """
    from msgspec import structs

    from nearfree.config.plans import Plans
    from nearfree.core.label import AXES, label, ordered
    from nearfree.core.plan import PREDICTIONS_SUFFIX
    from nearfree.log.events import PredictionRecorded
    from nearfree.log.evidence import read_take
    from nearfree.log.take import take_name
    from nearfree.preregister.record import foretell
    from nearfree.show.text.forecast import amount

    axes = ordered(AXES, "context", "batch", "routing")
    config, scope = local_scope(args)
    stream = f"{args.study.removesuffix(PREDICTIONS_SUFFIX)}{PREDICTIONS_SUFFIX}"
    take = args.take or config.take(scope, stream)
    plan = Plans(config, scope).foretell(stream)
    layout = layout_of(args)
    seal = foretell(layout, scope, stream, take, plan)
    print_seal(seal)
    for event in read_take(layout, take_name(scope, stream, take, plan)).events_of(
        PredictionRecorded
    ):
        prediction = event.data
        if prediction.epsilon == config.site.epsilon:
            where = label(structs.asdict(prediction.setting), axes)
            value = (
                prediction.refusal
                or f"{amount(prediction.n_max)} [{amount(prediction.low)}, "
                f"{amount(prediction.high)}], {prediction.limiting_module or ''}"
            )
            name = (
                prediction.predictor
                if prediction.basis is None
                else f"{prediction.predictor} ({prediction.basis})"
            )
            print(f"  {where}: {name}: {value}")
    return 0


@command(
    "retake",
    argument("platform", help="a platform of `here`"),
    argument("study", nargs="?", help="one study (default: all of the platform)"),
    argument("--backend", metavar="NAME", help="only settings of this backend"),
)
def run_retake(args: argparse.Namespace) -> int:
    """Request another take: raise its number in config/takes.yaml; the workflow measures it.

    Example: nearfree retake cpu dense_ffn
    """
    from nearfree.config.plans import raise_takes

    config, scope = local_scope(args)
    raised = raise_takes(config, layout_of(args), scope, args.study, args.backend)
    for study, take in raised.items():
        print(f"{scope}/{study}: take {take}")
    print(f"Now run: snakemake --cores all {scope}")
    print(f"On a cluster: snakemake --profile slurm {scope}")
    return 0
