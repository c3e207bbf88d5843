"""`nearfree schedule`: draft lengths by batch size, as an engine's option."""

import argparse
import sys
from collections.abc import Iterator
from functools import partial
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
from nearfree.cli.drafters import OWN, doubts, draft_costs, drafter_deployments, names_head
from nearfree.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from nearfree.config.files import Config
    from nearfree.derive.predict.answers import Answerer
    from nearfree.derive.predict.forecast.deployment import Deployment
    from nearfree.derive.predict.forecast.forecast import Forecast
    from nearfree.derive.schedule.option import Option
    from nearfree.show.text.context_schedule import ContextSchedule, Write


_CONTEXT = 4096
BACKEND = "llama_cpp"
"""The name of llama.cpp in settings and in `predict --engine`."""
TOLERANCE, THROUGHPUT = GOALS = ("tolerance", "throughput")
LAWS = ("idle_compute", "principle", "principle_resolved")


def _schedule_arguments(parser: argparse.ArgumentParser) -> None:
    from nearfree.derive.schedule.engines import ENGINES

    parser.add_argument(
        "engine", type=_engine, choices=ENGINES, help="the engine whose option is written"
    )
    add_deployment(parser, many=False, batch=False, contexts=True)
    parser.set_defaults(batch=None)
    add_answer_options(parser, largest=False)
    parser.add_argument(
        "--largest-batch",
        type=positive,
        default=256,
        help=f"the largest batch size{''.join(_limits())} (default: 256)",
    )
    parser.add_argument(
        "--longest", type=positive, default=16, help="the longest draft, tokens (default: 16)"
    )
    parser.add_argument(
        "--by",
        choices=[*LAWS, "work_model"],
        default="work_model",
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


def _engine(text: str) -> str:
    """Return an engine's name; the name of its backend is accepted, too."""
    from nearfree.derive.schedule.llama_cpp import LLAMA_CPP

    return LLAMA_CPP if text == BACKEND else text


def _limits() -> Iterator[str]:
    from nearfree.derive.schedule.engines import ENGINES

    for name, engine in ENGINES.items():
        if engine.largest_batch:
            yield f"; {name} has {engine.largest_batch}"


@command("schedule", _schedule_arguments, answers=True)
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
    from nearfree.derive.schedule.doubts import release_doubts
    from nearfree.show.text.choices import choices_table
    from nearfree.show.text.schedule import ASSUMED
    from nearfree.show.text.schedule_json import choices_json, schedules_json

    _check(args)
    config = config_of(args)
    contexts = list(dict.fromkeys(args.context or [_CONTEXT]))
    schedules = [_schedule(args, config, context) for context in contexts]
    goal, warnings = _goal(args), doubts(args, config)
    notes = warnings if args.attention else [ASSUMED, *warnings]
    if goal == THROUGHPUT and args.acceptance is None:
        if args.format == "json":
            print(choices_json(args.engine, goal, schedules, notes))
        else:
            print("\n".join(choices_table(schedules, notes)))
        return 0
    safe = _safe(args, config, schedules)
    first = schedules[0].forecast.deployments[0]
    engines = [first.engine, *([first.graphs.engine] if first.graphs else [])]
    notes = [*release_doubts(args.engine, engines), *notes]
    if args.format == "json":
        encoded = schedules_json(
            args.engine, goal, args.worth, schedules, safe, epsilon=tolerance_of(args, config),
            notes=notes,
        )  # fmt: skip
        print(encoded)
        return 0
    print(safe.option.text)
    print("\n".join(_evidence(args, schedules, safe, notes)), file=sys.stderr)
    return 0


def _evidence(
    args: argparse.Namespace,
    schedules: "Sequence[ContextSchedule]",
    safe: "ContextSchedule",
    notes: "Sequence[str]",
) -> Iterator[str]:
    from nearfree.show.text.schedule import memory_end, schedule_report

    if len(schedules) > 1:
        contexts = ", ".join(str(schedule.context) for schedule in schedules)
        yield f"# the option is safe at L = {contexts}: " + (
            "at each batch size the longest K that is near-free at every context"
            if _goal(args) == TOLERANCE
            else f"that of L = {safe.context}, whose worst loss over the contexts is the smallest"
        )
    for schedule in schedules:
        if len(schedules) > 1:
            yield f"# L = {schedule.context}: {schedule.option.text}"
        first_notes = notes if schedule is schedules[0] else ()
        yield from schedule_report(
            schedule.forecast, schedule.choices, schedule.option, first_notes
        )
        if schedule.lost and args.worth:
            worst, mean = schedule.lost
            yield (
                f"# merged entries lose {worst:.1%} of the best expected tokens/s at worst, "
                f"{mean:.1%} in the mean over batch sizes; --worth 0 loses nothing"
            )
        yield from memory_end(schedule.deployments, len(schedule.forecast.deployments))


def _goal(args: argparse.Namespace) -> str:
    return str(args.goal or (TOLERANCE if args.acceptance is None else THROUGHPUT))


def _schedule(args: argparse.Namespace, config: "Config", context: int) -> "ContextSchedule":
    """Return the schedule at one context."""
    from nearfree.derive.predict.forecast.draft_memory import beside_drafters
    from nearfree.derive.predict.forecast.expand_deployments import deployments
    from nearfree.derive.predict.forecast.forecast import forecast, positions
    from nearfree.derive.schedule import expected
    from nearfree.derive.schedule.engines import ENGINES
    from nearfree.show.text.context_schedule import ContextSchedule
    from nearfree.show.text.schedule import near_free_by_batch, ratio_by_batch

    args = argparse.Namespace(**{**vars(args), "context": [context]})
    engine = ENGINES[args.engine]
    largest_batch = engine.largest_batch or args.largest_batch
    spec = make_spec(args, batch=range(1, largest_batch + 1), moe=engine.moe)
    drafters = drafter_deployments(args, config, largest_batch)
    every = beside_drafters(
        deployments(config, spec, loads_of(args)), drafters, own=args.drafter == OWN
    )
    queries = _fitting(args, every)
    answerer = make_answerer(args, config, queries)
    epsilon = tolerance_of(args, config)
    answers = forecast(
        queries, answerer, [epsilon], grid=positions(args.longest + 1), predictors=[args.by],
        full=False,
    )  # fmt: skip
    schedule = ContextSchedule(context=context, deployments=every, forecast=answers)
    if _goal(args) == TOLERANCE:
        near_free = near_free_by_batch(answers, epsilon, most=args.longest, cautious=args.cautious)
        write = _writer(args, config, answers, answerer, None)
        return schedule.of_lengths(write, near_free, args.worth)
    costs = draft_costs(args, answers, answerer, drafters)
    ratios = ratio_by_batch(answers)
    if args.acceptance is None:
        return schedule.of_rates(ratios, costs, most=args.longest)
    rates = args.acceptance
    accepted = (
        expected.independent(rates[0], most=args.longest)
        if len(rates) == 1
        else expected.measured(rates)
    )
    speeds = expected.speedups(ratios, accepted, draft_cost=costs)
    write = _writer(args, config, answers, answerer, accepted)
    return schedule.of_speeds(write, speeds, args.worth)


def _writer(
    args: argparse.Namespace,
    config: "Config",
    answers: "Forecast",
    answerer: "Answerer",
    accepted: "Sequence[float] | None",
) -> "Write":
    """Return the writer of an engine's option; vLLM's follows the CUDA graphs that it captures.

    Parameters
    ----------
    accepted
        The shares of rounds in which the first 1, 2, ... drafts are all accepted, None where K is
        chosen by the tolerance.
    """
    from nearfree.decoders.engines import VLLM
    from nearfree.derive.granularity.graphs import GraphSteps
    from nearfree.derive.schedule.engines import ENGINES, vllm_option
    from nearfree.show.text.schedule import ratio_by_batch

    graphs = answers.deployments[0].graphs
    known = answers.total.refusals[0] is None
    if graphs and known and args.engine == graphs.engine.name == VLLM.name:
        requests, largest = GraphSteps(answerer.rules).most(graphs)
        return partial(vllm_option, requests=requests, largest=largest)
    return ENGINES[args.engine].lengths or _single_length(
        args, config, ratio_by_batch(answers)[1], accepted
    )


def _single_length(
    args: argparse.Namespace,
    config: "Config",
    ratio: "Mapping[int, float]",
    accepted: "Sequence[float] | None",
) -> "Write":
    """Return the writer for an engine that takes one K, chosen by T(N) / T(1) of one request."""
    from nearfree.derive.schedule import llama_cpp

    epsilon = tolerance_of(args, config)
    drafter_type = llama_cpp.MODEL
    if args.drafter == OWN:
        drafter_type = llama_cpp.OWN_LAYER
    elif args.drafter is not None and names_head(args, config):
        drafter_type = llama_cpp.HEAD
    elif args.drafter is None and args.draft_cost == 0:
        drafter_type = llama_cpp.LOOKUP

    def write(k_by_batch: "Mapping[int, int]") -> "Option":
        shortest = None
        if accepted is not None:
            worth = llama_cpp.worth_verifying(ratio, k_by_batch[1], accepted)
            shortest = llama_cpp.shortest_draft(worth)
        return llama_cpp.llama_cpp_option(
            k_by_batch, kind=drafter_type, shortest=shortest, ratio=ratio, epsilon=epsilon
        )

    return write


def _safe(
    args: argparse.Namespace, config: "Config", schedules: "Sequence[ContextSchedule]"
) -> "ContextSchedule":
    """Return the schedule that is safe at all contexts.

    Where the engine takes a single K, the largest T(N) / T(1) over the contexts counts.
    """
    from msgspec.structs import replace

    from nearfree.derive.schedule.engines import ENGINES
    from nearfree.show.text.context_schedule import least_loss, shortest
    from nearfree.show.text.schedule import ratio_by_batch

    if len(schedules) == 1:
        return schedules[0]
    if _goal(args) != TOLERANCE:
        return least_loss(schedules)
    if ENGINES[args.engine].lengths is None:
        ratios = [ratio_by_batch(schedule.forecast)[1] for schedule in schedules]
        largest = {n: max(ratio[n] for ratio in ratios) for n in ratios[0]}
        write = _single_length(args, config, largest, None)
        schedules = [replace(schedule, write=write) for schedule in schedules]
    return shortest(schedules, args.worth)


def _fitting(args: argparse.Namespace, queries: "Sequence[Deployment]") -> "Sequence[Deployment]":
    """Return the batch sizes that fit in memory, or all of them with --ignore-memory.

    Raises
    ------
    ConfigError
        Batch size 1 does not fit.
    """
    from nearfree.show.text.memory import memory_lines, unfit

    fitting = (
        queries if args.ignore_memory else [query for query in queries if not unfit(query.memory)]
    )
    if not fitting:
        first = queries[0]
        line = next(memory_lines(first.memory, first.platform))
        raise ConfigError(
            f"no schedule for {first.decoder.name} on {first.platform} at b = 1 and "
            f"L = {first.context}: {line}",
            remedy="Ask for a shorter context, another platform or smaller formats; "
            "--ignore-memory writes it all the same",
        )
    return fitting


def _check(args: argparse.Namespace) -> None:
    from nearfree.derive.schedule.draft_lengths import check_most
    from nearfree.derive.schedule.engines import ENGINES, dropped
    from nearfree.derive.schedule.llama_cpp import LLAMA_CPP
    from nearfree.derive.schedule.merging import check_worth

    check_most(args.longest)
    check_worth(args.worth)
    goal, single_length = _goal(args), ENGINES[args.engine].lengths is None
    costed = args.draft_cost is not None or args.drafter is not None
    if args.draft_cost is not None and args.drafter is not None:
        raise ConfigError(
            "--drafter and --draft-cost both say what drafting costs",
            remedy="Leave one of them out",
        )
    if goal == TOLERANCE and (args.acceptance is not None or costed):
        raise ConfigError(
            "near-free K uses neither an acceptance nor a drafter: --acceptance or the drafter's "
            "cost is given alone, or with --goal tolerance",
            remedy="Give --acceptance and either --draft-cost or --drafter CONFIG, with --goal "
            "throughput, or none of them; the cost of a free drafter is 0",
        )
    if goal == THROUGHPUT and not costed:
        raise ConfigError(
            "--goal throughput, or --acceptance, is given without the drafter's cost",
            remedy="Give --draft-cost, as measured, or --drafter CONFIG; the cost of a free "
            "drafter is 0",
        )
    needs_latency = goal == THROUGHPUT or single_length
    if args.cautious and args.by in LAWS:
        raise ConfigError(
            f"{args.by} gives no interval, which --cautious needs",
            remedy="Leave --cautious or --by out",
        )
    if needs_latency and (args.by != "work_model" or (args.cautious and goal == THROUGHPUT)):
        raise ConfigError(
            f"expected tokens per second, and the options of {LLAMA_CPP}, need T(N), which only "
            "the work model predicts",
            remedy="Leave --by and --cautious out",
        )
    reason = dropped(args.engine, args.dp or 1)
    if reason and (goal == TOLERANCE or args.acceptance is not None):
        raise ConfigError(
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
