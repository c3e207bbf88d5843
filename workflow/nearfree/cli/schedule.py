"""Draft lengths by batch size."""

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
from nearfree.cli.drafters import OWN, doubts, draft_costs, drafting_models, names_head
from nearfree.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from nearfree.config.files import Config
    from nearfree.derive.predict.answers import Answerer
    from nearfree.derive.predict.forecast.deployment import Deployment
    from nearfree.derive.predict.forecast.forecast import Forecast
    from nearfree.derive.schedule.option import Option
    from nearfree.show.text.planned import Planned, Write


_CONTEXT = 4096
BACKEND = "llama_cpp"
"""What settings and `predict --engine` call llama.cpp."""
TOLERANCE, THROUGHPUT = GOALS = ("tolerance", "throughput")
LAWS = ("idle_compute", "principle", "principle_resolved")


def _schedule_arguments(parser: argparse.ArgumentParser) -> None:
    from nearfree.derive.schedule.engines import ENGINES

    parser.add_argument("engine", type=_engine, choices=ENGINES, help="which engine's option")
    add_deployment(parser, many=False, batch=False, contexts=True)
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
        "--drafter",
        metavar="CONFIG",
        help="in its place what drafts: `own`, the model's own layer for further tokens; the "
        "config.json of an EAGLE or EAGLE-3 head; or a model as --model names one, in its files' "
        "precision; on the same GPUs",
    )
    parser.add_argument(
        "--goal",
        choices=GOALS,
        help="K of most expected tokens per second, which needs an acceptance (without one the "
        "command prints a table to choose by, and no option), or the longest near-free K "
        "(default: throughput with an acceptance, else tolerance)",
    )
    parser.add_argument(
        "--worth",
        type=number,
        default=0.02,
        help="what an entry is worth: the share of expected tokens per second (of near-free "
        "positions for the tolerance) that few entries may lose, more where more than 6 entries or "
        "5 distinct K would stay; 0 merges equal neighbours alone (default: 0.02)",
    )
    parser.add_argument(
        "--format",
        choices=("option", "json"),
        default="option",
        help="the engine's option, or all schedules as data (default: option)",
    )


def _engine(text: str) -> str:
    """Return an engine's name, which may be that of its backend."""
    from nearfree.derive.schedule.llama_cpp import LLAMA_CPP

    return LLAMA_CPP if text == BACKEND else text


def _limits() -> Iterator[str]:
    from nearfree.derive.schedule.engines import ENGINES

    for name, engine in ENGINES.items():
        if engine.largest_batch:
            yield f"; {name} has {engine.largest_batch}"


@command("schedule", _schedule_arguments, answers=True)
def run_schedule(args: argparse.Namespace) -> int:
    """Write draft lengths by batch size as an engine reads them, by predicted boundaries or times.

    Without an acceptance, K = N_max - 1 drafts, which the verifying forward processes near-free.
    With --acceptance and --draft-cost or --drafter, the K of most expected tokens per second; what
    drafts then costs a forward at K = 0, too. Neighbours are merged where they differ by less than
    --worth, near-free K only downwards. The option goes to standard output, its evidence to
    standard error. It ends at the largest batch size that fits in memory at the context, unless
    memory is ignored. Of several contexts the option is the safe one: the longest K near-free at
    all of them at each batch, or the schedule that loses least at worst; standard error has each
    context's own.

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
    asked = list(dict.fromkeys(args.context or [_CONTEXT]))
    every = [_at(args, config, context) for context in asked]
    of, against = (args.engine, _goal(args)), doubts(args, config)
    notes = against if args.attention else [ASSUMED, *against]
    if _goal(args) == THROUGHPUT and args.acceptance is None:
        if args.format == "json":
            print(choices_json(*of, every, notes))
        else:
            print("\n".join(choices_table(every, notes)))
        return 0
    safe = _safe(args, config, every)
    first = every[0].answers.deployments[0]
    served = [first.engine, *([first.graphs.engine] if first.graphs else [])]
    notes = [*release_doubts(args.engine, served), *notes]
    if args.format == "json":
        epsilon = tolerance_of(args, config)
        print(schedules_json(*of, args.worth, every, safe, epsilon=epsilon, notes=notes))
        return 0
    print(safe.option.text)
    print("\n".join(_evidence(args, every, safe, notes)), file=sys.stderr)
    return 0


def _evidence(
    args: argparse.Namespace, every: "Sequence[Planned]", safe: "Planned", notes: "Sequence[str]"
) -> Iterator[str]:
    from nearfree.show.text.schedule import ends, schedule_report

    if len(every) > 1:
        yield (
            f"# the option is the safe one at L = {', '.join(str(e.context) for e in every)}: "
            + (
                "the longest K near-free at all of them at each batch size"
                if _goal(args) == TOLERANCE
                else f"that of L = {safe.context}, whose worst loss over them is least"
            )
        )
    for each in every:
        if len(every) > 1:
            yield f"# L = {each.context}: {each.option.text}"
        said = notes if each is every[0] else ()
        yield from schedule_report(each.answers, each.choices, each.option, said)
        if each.lost and args.worth:
            worst, mean = each.lost
            yield (
                f"# few entries lose {worst:.1%} of the best expected tokens/s at worst, "
                f"{mean:.1%} in the mean over batch sizes; --worth 0 loses nothing"
            )
        yield from ends(each.asked, len(each.answers.deployments))


def _goal(args: argparse.Namespace) -> str:
    return str(args.goal or (TOLERANCE if args.acceptance is None else THROUGHPUT))


def _at(args: argparse.Namespace, config: "Config", context: int) -> "Planned":
    """Return the schedule at one context."""
    from nearfree.derive.predict.forecast.draft_memory import beside_drafters
    from nearfree.derive.predict.forecast.expand_deployments import deployments
    from nearfree.derive.predict.forecast.forecast import forecast, positions
    from nearfree.derive.schedule import expected
    from nearfree.derive.schedule.engines import ENGINES
    from nearfree.show.text.planned import Planned
    from nearfree.show.text.schedule import near_free_by_batch, ratio_by_batch

    args = argparse.Namespace(**{**vars(args), "context": [context]})
    engine = ENGINES[args.engine]
    most = engine.largest_batch or args.largest_batch
    spec = make_spec(args, batch=range(1, most + 1), moe=engine.moe)
    every = deployments(config, spec, loads_of(args))
    drafting = drafting_models(args, config, most)
    every = beside_drafters(every, drafting, own=args.drafter == OWN)
    queries = _held(args, every)
    answerer = make_answerer(args, config, queries)
    epsilon = tolerance_of(args, config)
    answers = forecast(
        queries, answerer, [epsilon], grid=positions(args.longest + 1), predictors=[args.by],
        full=False,
    )  # fmt: skip
    plan = Planned(context=context, asked=every, answers=answers)
    if _goal(args) == TOLERANCE:
        near_free = near_free_by_batch(answers, epsilon, most=args.longest, cautious=args.cautious)
        write = _writer(args, config, answers, answerer, None)
        return plan.of_lengths(write, near_free, args.worth)
    costs = draft_costs(args, answers, answerer, drafting)
    ratios = ratio_by_batch(answers)
    if args.acceptance is None:
        return plan.of_rates(ratios, costs, most=args.longest)
    rates = args.acceptance
    accepted = (
        expected.independent(rates[0], most=args.longest)
        if len(rates) == 1
        else expected.measured(rates)
    )
    speeds = expected.speedups(ratios, accepted, draft_cost=costs)
    write = _writer(args, config, answers, answerer, accepted)
    return plan.of_speeds(write, speeds, args.worth)


def _writer(
    args: argparse.Namespace,
    config: "Config",
    answers: "Forecast",
    answerer: "Answerer",
    accepted: "Sequence[float] | None",
) -> "Write":
    """Return what writes an engine's option, for vLLM by how much it captures on the GPU."""
    from nearfree.decoders.engines import VLLM
    from nearfree.derive.granularity.graphs import GraphSteps
    from nearfree.derive.schedule.engines import ENGINES, vllm_option
    from nearfree.show.text.schedule import ratio_by_batch

    graphs = answers.deployments[0].graphs
    known = answers.total.refusals[0] is None
    if graphs and known and args.engine == graphs.engine.name == VLLM.name:
        requests, largest = GraphSteps(answerer.rules).most(graphs)
        return partial(vllm_option, requests=requests, largest=largest)
    return ENGINES[args.engine].lengths or _one_length(
        args, config, ratio_by_batch(answers)[1], accepted
    )


def _one_length(
    args: argparse.Namespace,
    config: "Config",
    ratio: "Mapping[int, float]",
    accepted: "Sequence[float] | None",
) -> "Write":
    """Return what writes the option of an engine that takes one K, by T(N) of one request."""
    from nearfree.derive.schedule import llama_cpp

    epsilon = tolerance_of(args, config)
    kind = llama_cpp.MODEL
    if args.drafter == OWN:
        kind = llama_cpp.OWN_LAYER
    elif args.drafter is not None and names_head(args, config):
        kind = llama_cpp.HEAD
    elif args.drafter is None and args.draft_cost == 0:
        kind = llama_cpp.LOOKUP

    def write(k_by_batch: "Mapping[int, int]") -> "Option":
        shortest = None
        if accepted is not None:
            worth = llama_cpp.worth_verifying(ratio, k_by_batch[1], accepted)
            shortest = llama_cpp.shortest_draft(worth)
        return llama_cpp.llama_cpp_option(
            k_by_batch, kind=kind, shortest=shortest, ratio=ratio, epsilon=epsilon
        )

    return write


def _safe(args: argparse.Namespace, config: "Config", every: "Sequence[Planned]") -> "Planned":
    """Return the schedule that is safe at all contexts; of one K, by the dearest T(N) of them."""
    from msgspec.structs import replace

    from nearfree.derive.schedule.engines import ENGINES
    from nearfree.show.text.planned import least_loss, shortest
    from nearfree.show.text.schedule import ratio_by_batch

    if len(every) == 1:
        return every[0]
    if _goal(args) != TOLERANCE:
        return least_loss(every)
    if ENGINES[args.engine].lengths is None:
        ratios = [ratio_by_batch(each.answers)[1] for each in every]
        dearest = {n: max(ratio[n] for ratio in ratios) for n in ratios[0]}
        write = _one_length(args, config, dearest, None)
        every = [replace(each, write=write) for each in every]
    return shortest(every, args.worth)


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


def _check(args: argparse.Namespace) -> None:
    from nearfree.derive.schedule.draft_lengths import check_most
    from nearfree.derive.schedule.engines import ENGINES, dropped
    from nearfree.derive.schedule.llama_cpp import LLAMA_CPP
    from nearfree.derive.schedule.merging import check_worth

    check_most(args.longest)
    check_worth(args.worth)
    goal, one = _goal(args), ENGINES[args.engine].lengths is None
    drafts = args.draft_cost is not None or args.drafter is not None
    if args.draft_cost is not None and args.drafter is not None:
        raise ConfigError(
            "--drafter and --draft-cost both say what drafting costs",
            remedy="Leave one of them out",
        )
    if goal == TOLERANCE and (args.acceptance is not None or drafts):
        raise ConfigError(
            "near-free K rests on no acceptance and no drafter: one of --acceptance and "
            "--draft-cost is given without the other, or with --goal tolerance",
            remedy="Give an acceptance and a cost or --drafter CONFIG with --goal throughput, or "
            "none of them; a drafter that costs nothing is 0",
        )
    if goal == THROUGHPUT and not drafts:
        raise ConfigError(
            "--goal throughput, or --acceptance, is given without what drafting costs",
            remedy="Give --draft-cost, as measured, or --drafter CONFIG; a drafter that costs "
            "nothing is 0",
        )
    timed = goal == THROUGHPUT or one
    if args.cautious and args.by in LAWS:
        raise ConfigError(
            f"{args.by} gives no interval, which --cautious needs",
            remedy="Leave --cautious or --by out",
        )
    if timed and (args.by != "work_model" or (args.cautious and goal == THROUGHPUT)):
        raise ConfigError(
            f"expected tokens per second, and what {LLAMA_CPP} takes, need T(N), which only the "
            "work model gives",
            remedy="Leave --by and --cautious out",
        )
    why = dropped(args.engine, args.dp or 1)
    if why and (goal == TOLERANCE or args.acceptance is not None):
        raise ConfigError(
            why,
            remedy="Ask about one group without --dp, or choose one K by the table of --goal "
            "throughput without --acceptance",
        )


def _acceptance(text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no list of probabilities") from None
