"""The run of `nearfree schedule`: draft lengths by batch size, as an engine's option."""

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import partial

from msgspec.structs import replace

from nearfree.cli.answers import answerable
from nearfree.cli.common import config_of
from nearfree.cli.deployment_options import loads_of, make_answerer, make_spec, tolerance_of
from nearfree.cli.drafters import (
    OWN,
    doubts,
    draft_costs,
    drafter_cache,
    drafter_deployments,
    names_head,
)
from nearfree.cli.schedule_options import (
    LARGEST_BATCH,
    THROUGHPUT,
    TOLERANCE,
    goal_of,
)
from nearfree.config.files import Config
from nearfree.decoders.ranks.engines import VLLM
from nearfree.derive.granularity.graphs import GraphSteps
from nearfree.derive.predict.answers import Answerer
from nearfree.derive.predict.forecast.alternatives import Alternatives
from nearfree.derive.predict.forecast.deployment import Deployment
from nearfree.derive.predict.forecast.draft_memory import with_drafters
from nearfree.derive.predict.forecast.forecast import Forecast, forecast, positions
from nearfree.derive.schedule import expected, llama_cpp
from nearfree.derive.schedule.doubts import release_warnings
from nearfree.derive.schedule.engines import ENGINES, vllm_option
from nearfree.derive.schedule.option import Option
from nearfree.errors import ConfigError
from nearfree.show.text.context_schedule import ContextSchedule, Write, least_loss, shortest
from nearfree.show.text.memory import memory_lines, unfit
from nearfree.show.text.schedule import (
    ASSUMED,
    choices_table,
    memory_end,
    near_free_by_batch,
    ratio_by_batch,
    schedule_report,
)
from nearfree.show.text.schedule_json import choices_json, schedules_json

_CONTEXT = 4096


def schedule(args: argparse.Namespace) -> int:
    """Print the option of the checked arguments, or what the best K would win; return 0."""
    config = config_of(args)
    contexts = list(dict.fromkeys(args.context or [_CONTEXT]))
    schedules = [_schedule(args, config, context) for context in contexts]
    first = schedules[0].forecast.deployments[0]
    engines = [first.engine, *([first.graphs.engine] if first.graphs else [])]
    goal, warnings = goal_of(args), doubts(args, config)
    notes = warnings if args.attention else [ASSUMED, *warnings]
    notes = [*release_warnings(args.engine, engines), *notes]
    if goal == THROUGHPUT and args.acceptance is None:
        if args.format == "json":
            print(choices_json(args.engine, goal, schedules, notes))
        else:
            print("\n".join(choices_table(schedules, notes)))
        return 0
    safe = _safe(args, config, schedules)
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
    schedules: Sequence[ContextSchedule],
    safe: ContextSchedule,
    notes: Sequence[str],
) -> Iterator[str]:
    if len(schedules) > 1:
        contexts = ", ".join(str(schedule.context) for schedule in schedules)
        yield f"# the option is safe at L = {contexts}: " + (
            "at each batch size the longest K that is near-free at every context"
            if goal_of(args) == TOLERANCE
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


def _schedule(args: argparse.Namespace, config: Config, context: int) -> ContextSchedule:
    """Return the schedule at one context."""
    args = argparse.Namespace(**{**vars(args), "context": [context]})
    engine = ENGINES[args.engine]
    largest_batch = engine.largest_batch or args.largest_batch or LARGEST_BATCH
    spec = make_spec(args, batch=range(1, largest_batch + 1), moe=engine.moe)
    targets = answerable(args, config, spec)
    cache = drafter_cache(args, targets[0])
    drafters = drafter_deployments(args, config, largest_batch, cache)
    every = with_drafters(targets, drafters, own=args.drafter == OWN)
    queries = _fitting(args, every)
    answerer = make_answerer(args, config, queries)
    epsilon = tolerance_of(args, config)
    answers = forecast(
        queries, answerer, [epsilon], grid=positions(args.longest + 1), predictors=[args.by],
        full=False,
    )  # fmt: skip
    answers = Alternatives(config, spec, answerer, loads_of(args)).named(answers)
    schedule = ContextSchedule(context=context, deployments=every, forecast=answers)
    if goal_of(args) == TOLERANCE:
        near_free = near_free_by_batch(answers, epsilon, most=args.longest, cautious=args.cautious)
        write = _writer(args, config, answers, answerer, None)
        return schedule.of_lengths(write, near_free, args.worth)
    costs = draft_costs(args, answers, answerer, drafters)
    ratios = ratio_by_batch(answers)
    if args.acceptance is None:
        return schedule.of_rates(ratios, costs, most=args.longest)
    accepted = expected.acceptance_curve(args.acceptance, most=args.longest)
    speeds = expected.speedups(ratios, accepted, draft_cost=costs)
    write = _writer(args, config, answers, answerer, accepted)
    return schedule.of_speeds(write, speeds, args.worth)


def _writer(
    args: argparse.Namespace,
    config: Config,
    answers: Forecast,
    answerer: Answerer,
    accepted: Sequence[float] | None,
) -> Write:
    """Return the writer of an engine's option; vLLM's follows the CUDA graphs that it captures.

    Parameters
    ----------
    accepted
        The shares of rounds in which the first 1, 2, ... drafts are all accepted, None where K is
        chosen by the tolerance.
    """
    graphs = answers.deployments[0].graphs
    known = answers.total.refusals[0] is None
    if graphs and known and args.engine == graphs.engine.name == VLLM.name:
        requests, largest = GraphSteps(answerer.resolver.rules).most(graphs)
        return partial(vllm_option, requests=requests, largest=largest)
    return ENGINES[args.engine].lengths or _single_length(
        args, config, ratio_by_batch(answers)[1], accepted
    )


def _single_length(
    args: argparse.Namespace,
    config: Config,
    ratio: Mapping[int, float],
    accepted: Sequence[float] | None,
) -> Write:
    """Return the writer for an engine that takes one K, chosen by T(N) / T(1) of one request."""
    epsilon = tolerance_of(args, config)
    drafter_type = llama_cpp.MODEL
    if args.drafter == OWN:
        drafter_type = llama_cpp.OWN_LAYER
    elif args.drafter is not None and names_head(args, config):
        drafter_type = llama_cpp.HEAD
    elif args.drafter is None and args.draft_cost == 0:
        drafter_type = llama_cpp.LOOKUP

    def write(k_by_batch: Mapping[int, int]) -> Option:
        shortest = None
        if accepted is not None:
            worth = llama_cpp.worth_verifying(ratio, k_by_batch[1], accepted)
            shortest = llama_cpp.shortest_draft(worth)
        return llama_cpp.llama_cpp_option(
            k_by_batch, kind=drafter_type, shortest=shortest, ratio=ratio, epsilon=epsilon
        )

    return write


def _safe(
    args: argparse.Namespace, config: Config, schedules: Sequence[ContextSchedule]
) -> ContextSchedule:
    """Return the schedule that is safe at all contexts.

    Where the engine takes a single K, the largest T(N) / T(1) over the contexts counts.
    """
    if len(schedules) == 1:
        return schedules[0]
    if goal_of(args) != TOLERANCE:
        return least_loss(schedules)
    if ENGINES[args.engine].lengths is None:
        ratios = [ratio_by_batch(schedule.forecast)[1] for schedule in schedules]
        largest = {n: max(ratio[n] for ratio in ratios) for n in ratios[0]}
        write = _single_length(args, config, largest, None)
        schedules = [replace(schedule, write=write) for schedule in schedules]
    return shortest(schedules, args.worth)


def _fitting(args: argparse.Namespace, queries: Sequence[Deployment]) -> Sequence[Deployment]:
    """Return the batch sizes that fit in memory, or all of them with --ignore-memory.

    Raises
    ------
    ConfigError
        Batch size 1 does not fit.
    """
    fitting = (
        queries if args.ignore_memory else [query for query in queries if not unfit(query.memory)]
    )
    if not fitting:
        first = queries[0]
        line = next(memory_lines(first.memory, first.platform))
        needed = first.memory and first.memory.gpus_needed  # by tp alone
        by_tp_alone = first.parallel.gpus == first.parallel.tp
        more = f"--tp {needed}, " if needed and by_tp_alone else ""
        raise ConfigError(
            f"no schedule for {first.decoder.name} on {first.platform} at b = 1 and "
            f"L = {first.context}: {line}",
            remedy=f"Ask for {more}a shorter context, another platform or smaller formats; "
            "--ignore-memory writes it all the same",
        )
    return fitting
