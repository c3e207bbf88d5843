"""Draft lengths by batch size."""

import argparse
import math
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

from nearfree.cli.common import command, config_of, in_one_thread, number, positive
from nearfree.cli.deployment_options import (
    add_answer_options,
    add_deployment,
    loads_of,
    make_answerer,
    make_spec,
    tolerance_of,
)
from nearfree.derive.schedule.engines import ENGINES
from nearfree.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nearfree.config.files import Config
    from nearfree.derive.predict.answers import Answerer
    from nearfree.derive.predict.forecast.deployment import Deployment
    from nearfree.derive.predict.forecast.forecast import Forecast
    from nearfree.derive.schedule.engines import Option
    from nearfree.derive.schedule.expected import Choice


OWN = "own"
"""What drafts where it is the model's own layer for further tokens."""
LAWS = ("idle_compute", "principle", "principle_resolved")


def _schedule_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("engine", choices=ENGINES, help="which engine's option")
    add_deployment(parser, many=False, batch=False)
    parser.set_defaults(batch=None)
    add_answer_options(parser, largest=False)
    parser.add_argument(
        "--largest-batch",
        type=positive,
        default=256,
        help=f"the last batch size{''.join(_limits())} (default: 256)",
    )
    parser.add_argument(
        "--longest", type=positive, default=16, help="the longest draft, tokens (default: 16)"
    )
    parser.add_argument(
        "--by",
        choices=[*LAWS, "work_model"],
        default="work_model",
        help="the predictor of the boundary, laws with batch in them (default: work_model)",
    )
    parser.add_argument(
        "--cautious", action="store_true", help="take the lower end of the boundary's interval"
    )
    parser.add_argument(
        "--acceptance",
        type=_acceptance,
        help="the rate at which a draft token is accepted, or a measured curve: the shares of "
        "rounds in which the first 1, 2, ... drafts are all accepted, with commas between",
    )
    parser.add_argument(
        "--draft-cost", type=number, help="the drafter's time for a token as a share of T(1)"
    )
    parser.add_argument(
        "--draft",
        metavar="MODEL",
        help="in its place what drafts: `own`, the model's own layer for further tokens, or a "
        "model as --model names one, in its files' precision on the same GPUs",
    )


def _limits() -> Iterator[str]:
    for name, engine in ENGINES.items():
        if engine.largest_batch:
            yield f"; {name} has {engine.largest_batch}"


@command("schedule", _schedule_arguments, answers=True)
def run_schedule(args: argparse.Namespace) -> int:
    """Write draft lengths by batch size as an engine reads them, by predicted boundaries or times.

    Without an acceptance, K = N_max - 1 drafts, which the verifying forward processes near-free.
    With --acceptance and --draft-cost or --draft, the K of most expected tokens per second; what
    drafts then costs a forward at K = 0, too. The option goes to standard output, its evidence to
    standard error. It ends at the largest batch size that fits in
    memory at the context, unless memory is ignored.
    """
    in_one_thread()
    from nearfree.derive.predict.forecast.expand_deployments import deployments
    from nearfree.derive.predict.forecast.forecast import forecast, positions
    from nearfree.show.text.schedule import ends, schedule_report

    _check(args)
    config = config_of(args)
    epsilon = tolerance_of(args, config)
    engine = ENGINES[args.engine]
    most = engine.largest_batch or args.largest_batch
    spec = make_spec(args, batch=range(1, most + 1), moe=engine.moe)
    every = deployments(config, spec, loads_of(args))
    queries = _held(args, every)
    answerer = make_answerer(args, config, queries)
    answers = forecast(
        queries, answerer, [epsilon], grid=positions(args.longest + 1), predictors=[args.by],
        full=False,
    )  # fmt: skip
    costs = _draft_costs(args, config, answers, answerer)
    option, choices = _option(args, answers, costs)
    print(option.text)
    assumed = args.attention is None
    lines = schedule_report(answers, choices, option, assumed=assumed)
    print("\n".join((*lines, *ends(every, len(queries)))), file=sys.stderr)
    return 0


def _held(args: argparse.Namespace, every: "Sequence[Deployment]") -> "Sequence[Deployment]":
    """Return the batch sizes that memory holds, or all where it is to be ignored.

    Raises
    ------
    ConfigError
        It does not hold batch 1.
    """
    from nearfree.show.text.memory import memory_lines, unfit

    held = every if args.ignore_memory else [each for each in every if not unfit(each.memory)]
    if not held:
        first = every[0]
        line = next(memory_lines(first.memory, first.platform))
        raise ConfigError(
            f"no schedule for {first.decoder.name} on {first.platform} at b = 1 and "
            f"L = {first.context}: {line}",
            remedy="Ask for a shorter context, another platform or smaller formats; "
            "--ignore-memory writes it all the same",
        )
    return held


def _draft_costs(
    args: argparse.Namespace, config: "Config", answers: "Forecast", answerer: "Answerer"
) -> "float | dict[int, list[float]]":
    """Return what drafting costs: a share of T(1) a token, or by batch size and draft length."""
    from msgspec import structs

    from nearfree.derive.predict.forecast.deployment import Questions
    from nearfree.derive.predict.forecast.draft import model_shares, own_shares
    from nearfree.derive.predict.forecast.expand_deployments import deployments
    from nearfree.derive.predict.forecast.total import total
    from nearfree.show.text.schedule import ratio_by_batch

    if args.draft is None:
        return float(args.draft_cost or 0.0)
    ratio_by_batch(answers)  # refuses a T(N) that is not known
    if args.draft == OWN:
        return own_shares(answers.total, answers.deployments, answerer.engine_steps)
    batches = [each.batch for each in answers.deployments]
    drafter = argparse.Namespace(**vars(args) | {"model": [args.draft]})
    spec = make_spec(drafter, batch=batches, moe=ENGINES[args.engine].moe)
    plain = {"dtype": None, "weights": None, "activations": None, "kv_dtype": None, "ep": 1}
    drafting = deployments(config, structs.replace(spec, **plain))
    drafted = total(Questions(drafting, [1]), answerer)
    return model_shares(answers.total, answers.deployments, drafted, drafting)


def _option(
    args: argparse.Namespace, answers: "Forecast", draft_costs: "float | dict[int, list[float]]"
) -> "tuple[Option, dict[int, Choice]]":
    from nearfree.derive.schedule import expected
    from nearfree.derive.schedule.draft_lengths import draft_lengths
    from nearfree.derive.schedule.engines import BY_LENGTHS
    from nearfree.show.text.schedule import boundary_by_batch, ratio_by_batch

    costs = ENGINES[args.engine].costs
    if costs is not None:
        return costs(ratio_by_batch(answers)[1]), {}
    if args.acceptance is None:
        limits = boundary_by_batch(answers, cautious=args.cautious)
        lengths = draft_lengths(limits, most=args.longest)
        choices = {batch: expected.Choice(k, math.nan) for batch, k in lengths.items()}
    else:
        rates = args.acceptance
        accepted = (
            expected.independent(rates[0], most=args.longest)
            if len(rates) == 1
            else expected.measured(rates)
        )
        choices = expected.best_lengths(ratio_by_batch(answers), accepted, draft_cost=draft_costs)
    option = BY_LENGTHS[args.engine]({batch: choice.k for batch, choice in choices.items()})
    return option, choices


def _check(args: argparse.Namespace) -> None:
    from nearfree.derive.schedule.draft_lengths import check_most

    check_most(args.longest)
    if args.draft_cost is not None and args.draft is not None:
        raise ConfigError(
            "--draft and --draft-cost both say what drafting costs", remedy="Leave one of them out"
        )
    drafts = args.draft_cost is not None or args.draft is not None
    if (args.acceptance is None) == drafts:
        raise ConfigError(
            "one of --acceptance and --draft-cost is given without the other",
            remedy="Give both, as measured, or --draft MODEL in the place of the cost, or neither; "
            "a drafter that costs nothing is 0",
        )
    costs = ENGINES[args.engine].costs is not None
    if costs and args.acceptance is not None:
        raise ConfigError(
            f"{args.engine} takes costs, and weighs acceptance itself",
            remedy="Leave --acceptance and --draft-cost out",
        )
    timed = args.acceptance is not None or costs
    if args.cautious and args.by in LAWS:
        raise ConfigError(
            f"{args.by} gives no interval, which --cautious needs",
            remedy="Leave --cautious or --by out",
        )
    if timed and (args.by != "work_model" or args.cautious):
        raise ConfigError(
            "expected tokens per second and costs need T(N), which only the work model gives",
            remedy="Leave --by and --cautious out",
        )


def _acceptance(text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no list of probabilities") from None
