"""`nearfree schedule`: its options, and the combinations that it refuses."""

import argparse
from collections.abc import Callable, Iterator
from functools import partial

from nearfree.cli.common import command, in_one_thread, number, positive
from nearfree.cli.deployment_options import add_answer_options, add_deployment, refuse_options
from nearfree.core.predictors import LAWS, PREDICTORS, WORK_MODEL
from nearfree.errors import ConfigError, Refusal, RefusedError

BACKEND = "llama_cpp"
"""The name of llama.cpp in settings and in `predict --engine`."""
LARGEST_BATCH = 256
"""The default of `--largest-batch`."""
TOLERANCE, THROUGHPUT = GOALS = ("tolerance", "throughput")


def add_schedule_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of `nearfree schedule`."""
    from nearfree.derive.schedule.engines import ENGINES

    parser.add_argument(
        "engine",
        type=_engine,
        help=f"the engine whose option is written: {', '.join(ENGINES)}; with its release as "
        "vllm==0.33.0, the same as --moe",
    )
    add_deployment(parser, many=False)
    parser.set_defaults(batch=None)
    add_answer_options(parser, largest=False)
    parser.add_argument(
        "--largest-batch",
        type=positive,
        help=f"the largest batch size{''.join(_limits())} (default: {LARGEST_BATCH})",
    )
    parser.add_argument(
        "--longest", type=positive, default=16, help="the longest draft, tokens (default: 16)"
    )
    parser.add_argument(
        "--by",
        choices=PREDICTORS,
        default=WORK_MODEL,
        help="the predictor of the boundary; the laws count the batch (default: work_model)",
    )
    parser.add_argument(
        "--cautious", action="store_true", help="take the lower end of the boundary's interval"
    )
    parser.add_argument(
        "--acceptance",
        type=_acceptance,
        help="the rate at which a draft token is accepted, or a measured curve, comma-separated: "
        "the shares of rounds in which the first 1, 2, ... drafts are all accepted",
    )
    parser.add_argument(
        "--draft-cost", type=number, help="the drafter's time per token, as a share of T(1)"
    )
    parser.add_argument(
        "--drafter",
        metavar="CONFIG",
        help="instead of --draft-cost, the drafter whose cost is predicted, on the same GPUs: "
        "`own`, the model's own multi-token-prediction layer; the config.json of an EAGLE or "
        "EAGLE-3 head; or a model, given as for --model, in the precision of its files",
    )
    parser.add_argument(
        "--goal",
        choices=GOALS,
        help="throughput: the K of most expected tokens per second, which needs --acceptance "
        "(without it the command prints a table of K by acceptance, and no option); tolerance: the "
        "longest near-free K (default: throughput with --acceptance, else tolerance)",
    )
    parser.add_argument(
        "--worth",
        type=number,
        default=0.02,
        help="the share of expected tokens per second (with --goal tolerance, of near-free "
        "positions) that merging entries may lose; more if over 6 entries or 5 distinct K would be "
        "left; 0 merges only equal neighbours (default: 0.02)",
    )
    parser.add_argument(
        "--format",
        choices=("option", "json"),
        default="option",
        help="the engine's option, or all schedules as data (default: option)",
    )


@command("schedule", add_schedule_options, answers=True)
def run_schedule(args: argparse.Namespace) -> int:
    """Write draft lengths K by batch size, as an option that the engine reads.

    Without --acceptance, K = N_max - 1: as many drafts as the verifying forward processes
    near-free. With --acceptance and --draft-cost or --drafter, K maximises the expected tokens per
    second; the drafter's time then counts at K = 0, too. Entries that differ by less than --worth
    are merged, near-free K only downwards. The option goes to standard output, its evidence to
    standard error. The schedule ends at the largest batch size that fits in memory at the context,
    unless --ignore-memory is given. For several contexts the option is the safe one: at each batch
    size the longest K that is near-free at every context, or the schedule with the smallest
    worst-case loss; standard error has the option of each context.

    Example: nearfree schedule vllm --model qwen3_8b --platform h200 --acceptance 0.7
    --draft-cost 0.03
    """
    in_one_thread()
    use_release(args)
    check_options(args)
    from nearfree.cli.schedule import schedule

    return schedule(args)


def _engine(text: str) -> str:
    """Return an engine's name, with its release if it has one; argparse prints the error.

    The name of llama.cpp's backend is accepted, too.
    """
    from nearfree.derive.schedule.engines import ENGINES
    from nearfree.derive.schedule.llama_cpp import LLAMA_CPP

    name, separator, release = text.partition("==")
    name = LLAMA_CPP if name == BACKEND else name
    if name not in ENGINES:
        choices = ", ".join(map(repr, ENGINES))
        raise argparse.ArgumentTypeError(f"invalid choice: {name!r:.60} (choose from {choices})")
    return f"{name}{separator}{release}"


def use_release(args: argparse.Namespace) -> None:
    """Move the release of an engine, as in `vllm==0.33.0`, to `--moe`.

    Raises
    ------
    ConfigError
        `--moe` is given, too, or T(N) is not that of the engine's own kernels.
    """
    from nearfree.derive.schedule.engines import ENGINES

    name, separator, _ = args.engine.partition("==")
    if not separator:
        return
    if ENGINES[name].moe != name:
        raise ConfigError(
            f"{args.engine!r:.60} names a release, and T(N) of {name}'s kernels is not predicted",
            remedy=f"Write {name}; --moe names the engine whose kernels T(N) is predicted for",
        )
    refuse_options(args, ("moe",), f"with {args.engine}, which names the same", f"write {name}")
    args.engine, args.moe = name, args.engine


def _limits() -> Iterator[str]:
    from nearfree.derive.schedule.engines import ENGINES

    for name, engine in ENGINES.items():
        if engine.largest_batch:
            yield f"; {name} has {engine.largest_batch}"


def goal_of(args: argparse.Namespace) -> str:
    """Return the goal of --goal; the default depends on whether --acceptance is given."""
    return str(args.goal or (TOLERANCE if args.acceptance is None else THROUGHPUT))


def check_options(args: argparse.Namespace) -> None:
    """Refuse options that exclude each other, are out of range, or of which one is missing.

    Raises
    ------
    ConfigError
        With every reason.
    """
    faults = [Refusal("", "", fault.what, fault.remedy) for fault in _faults(args)]
    if faults:
        raise RefusedError(faults)


def _faults(args: argparse.Namespace) -> Iterator[ConfigError]:
    from nearfree.derive.schedule.draft_lengths import check_most
    from nearfree.derive.schedule.engines import ENGINES, drop_reason
    from nearfree.derive.schedule.expected import acceptance_curve, check_draft_cost
    from nearfree.derive.schedule.llama_cpp import LLAMA_CPP
    from nearfree.derive.schedule.merging import check_worth

    checks: list[Callable[[], object]] = [
        partial(check_most, args.longest),
        partial(check_worth, args.worth),
    ]
    if most := ENGINES[args.engine].largest_batch:
        where = f"with {args.engine}, whose option is for batch size {most}"
        checks.append(
            partial(refuse_options, args, ("largest_batch",), where, "name another engine")
        )
    if args.acceptance is not None:
        checks.append(partial(acceptance_curve, args.acceptance, most=1))
    if args.draft_cost is not None:
        checks.append(partial(check_draft_cost, args.draft_cost))
    for check in checks:
        try:
            check()
        except ConfigError as fault:
            yield fault
    goal, single_length = goal_of(args), ENGINES[args.engine].lengths is None
    costed = args.draft_cost is not None or args.drafter is not None
    if args.draft_cost is not None and args.drafter is not None:
        yield ConfigError(
            "--drafter and --draft-cost both say what drafting costs",
            remedy="Leave one of them out",
        )
    if goal == TOLERANCE and (args.acceptance is not None or costed):
        yield ConfigError(
            "near-free K uses neither an acceptance nor a drafter: --acceptance or the drafter's "
            "cost is given alone, or with --goal tolerance",
            remedy="Give --acceptance and either --draft-cost or --drafter CONFIG, with --goal "
            "throughput, or none of them; the cost of a free drafter is 0",
        )
    if goal == THROUGHPUT and not costed:
        yield ConfigError(
            "--goal throughput, or --acceptance, is given without the drafter's cost",
            remedy="Give --draft-cost, as measured, or --drafter CONFIG; the cost of a free "
            "drafter is 0",
        )
    needs_latency = goal == THROUGHPUT or single_length
    if args.cautious and args.by in LAWS:
        yield ConfigError(
            f"{args.by} gives no interval, which --cautious needs",
            remedy="Leave --cautious or --by out",
        )
    if needs_latency and (args.by != WORK_MODEL or (args.cautious and goal == THROUGHPUT)):
        yield ConfigError(
            f"expected tokens per second, and the options of {LLAMA_CPP}, need T(N), which only "
            "the work model predicts",
            remedy="Leave --by and --cautious out",
        )
    reason = drop_reason(args.engine, args.dp or 1)
    if reason and (goal == TOLERANCE or args.acceptance is not None):
        yield ConfigError(
            reason,
            remedy="Leave --dp out to schedule one group, or choose one K from the table of --goal "
            "throughput without --acceptance",
        )


def _acceptance(text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a comma-separated list of probabilities"
        ) from None
