"""The memory of a deployment, and the refusal of one that is not predicted, as text and JSON."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from nearfree.derive.memory import Memory
from nearfree.derive.predict.forecast.deployment import Deployment, SlowerOption
from nearfree.derive.predict.forecast.doubts import Doubt
from nearfree.derive.predict.forecast.model_query import Unanswered
from nearfree.errors import printable
from nearfree.units import BYTES_PER_GB

SCHEMA = "nearfree.predict.v1"
"""Schema of `nearfree predict --format json`; a later form has another number."""


def gb(size: int) -> str:
    """Return bytes in decimal GB."""
    return f"{size / BYTES_PER_GB:.1f} GB"


def unfit(memory: Memory | None) -> bool:
    """Return whether a deployment is known not to fit in memory."""
    return memory is not None and memory.fits is False


def verdict(memory: Memory | None, platform: str) -> str:
    """Return one line: whether a deployment fits, its parts in GB, and how many GPUs it needs."""
    if memory is None:
        return "memory: unknown, since the formats that the model stores are unknown"
    parts = (
        f"weights {gb(memory.weights_bytes)}, cache {gb(memory.kv_bytes)}, activations "
        f"{gb(memory.activations_bytes)}, allowance for the engine {gb(memory.engine_bytes)}"
    )
    if memory.drafter_bytes:
        parts += f", drafter {gb(memory.drafter_bytes)}"
    if memory.capacity_bytes is None:
        return f"memory: {gb(memory.peak_bytes)} ({parts}); the capacity of {platform} is unknown"
    needs, has = gb(memory.peak_bytes), gb(memory.capacity_bytes)
    fullest = f", {gb(memory.rank_bytes)} on the fullest GPU" if memory.gpus > 1 else ""
    needed = "no number of them holds it by --tp alone (--pp and --dp split the cache further)"
    if memory.gpus_needed:
        needed = f"{memory.gpus_needed} {platform} hold it"
        if memory.gpus_needed <= memory.gpus:
            needed += f" by --tp {memory.gpus_needed} alone"
    if memory.fits:
        return f"memory: {needs} of {has} on {memory.gpus} {platform}{fullest} ({parts})"
    have = f"{memory.gpus} {platform} {'has' if memory.gpus == 1 else 'have'} {has}"
    text = f"DOES NOT FIT: needs {needs}{fullest} ({parts}); {have}"
    return text if memory.drafter_bytes else f"{text}; {needed}"


def largest(memory: Memory) -> str:
    """Return the largest batch at this context, and the largest context at this batch."""
    return (
        f"largest batch at this context: {_limit(memory.largest_batch)}; "
        f"largest context at this batch, by memory alone: {_limit(memory.largest_context)}"
    )


def memory_lines(memory: Memory | None, platform: str) -> Iterator[str]:
    """Yield the memory verdict, and where the capacity is known the largest batch and context."""
    yield verdict(memory, platform)
    if memory is not None and memory.capacity_bytes is not None:
        yield f"  {largest(memory)}"
        yield from (f"  {note}" for note in memory.notes)


def with_memory(title: str, memory: Memory | None, lines: Iterable[str]) -> tuple[str, ...]:
    """Return a title with the lines of its memory, first those if the deployment does not fit."""
    return (*lines, title) if unfit(memory) else (title, *lines)


def first_unfit(queries: Sequence[Deployment]) -> tuple[int, str] | None:
    """Return the first batch size, of rising ones, that memory does not hold, and its verdict."""
    over = next((query for query in queries if unfit(query.memory)), None)
    return None if over is None else (over.batch, verdict(over.memory, over.platform))


def warning_lines(
    queries: Sequence[Deployment], doubted: Sequence[tuple[str, Doubt]] = ()
) -> Iterator[str]:
    """Yield a warning per model and platform where some conditions do not fit in memory.

    Then one per model with contexts beyond its file's limit, one per option that makes a model's
    T(1) longer, where it does so most, one per doubt about a model, and one per caveat of a
    model's T(N).
    """
    unfit_by_model: dict[tuple[str, str], list[Deployment]] = defaultdict(list)
    too_long_by_model: dict[str, list[Deployment]] = defaultdict(list)
    slower_by_option: dict[tuple[str, str], list[tuple[SlowerOption, Deployment]]]
    slower_by_option = defaultdict(list)
    for query in queries:
        if unfit(query.memory):
            unfit_by_model[query.decoder.name, query.platform].append(query)
        if query.too_long:
            too_long_by_model[query.decoder.name].append(query)
        for slower in query.slower:
            slower_by_option[query.decoder.name, slower.option].append((slower, query))
    for (model, platform), over in unfit_by_model.items():
        smallest = min(over, key=lambda query: query.memory.peak_bytes if query.memory else 0)
        start = f"b = {smallest.batch} at L = {smallest.context}"
        yield f"{model} on {platform}, from {start} on: {verdict(smallest.memory, platform)}"
    for model, too_long in too_long_by_model.items():
        shortest = min(too_long, key=lambda query: query.context)
        yield f"{model}, from L = {shortest.context} on: {shortest.too_long}"
    for (model, _), found in slower_by_option.items():
        slower, query = max(found, key=lambda one: one[0].ratio)
        yield f"{model}, most at b = {query.batch} and L = {query.context}: {slower}"
    yield from (f"{model}, T(N): up to {doubt}" for model, doubt in doubted)
    caveats = (
        (query.decoder.name, caveat)
        for query in queries
        for caveat in query.caveats
        if caveat not in (query.too_long, *map(str, query.slower))
    )
    yield from (f"{model}, T(N): {caveat}" for model, caveat in dict.fromkeys(caveats))


def _limit(value: int | None) -> str:
    return "not limited by memory" if value is None else f"{value:,}" if value else "none"


def unanswered_lines(unanswered: Unanswered) -> Iterator[str]:
    """Yield the memory of a deployment whose forward is not predicted; nothing if unknown."""
    if unanswered.memory is None:
        return
    about = unanswered.about
    lines = memory_lines(unanswered.memory, about["platform"])
    where = shared(about["platform"], about["parallel"])
    title = f"{about['model']} on {where}, batch {about['batch']}, context {about['context']}"
    yield from with_memory(title, unanswered.memory, lines)


def shared(platform: str, degrees: Mapping[str, int]) -> str:
    """Return a platform, with the number of GPUs and the parallel degrees above 1.

    Parameters
    ----------
    degrees
        The degrees by name, and their product as `gpus`: `Parallel.degrees`.
    """
    several = ", ".join(
        f"{name} {degree}" for name, degree in degrees.items() if name != "gpus" and degree > 1
    )
    return f"{degrees['gpus']} {platform} ({several})" if several else platform


def memory_json(memory: Memory | None) -> dict[str, Any] | None:
    """Return whether a deployment fits and its sizes in GB over all GPUs, None where unknown.

    `workspace_gb` is the sum of activations and the engine's allowance; `rank_gb` is the memory of
    the fullest GPU.
    """
    if memory is None:
        return None
    sizes = {
        "weights_gb": memory.weights_bytes,
        "kv_gb": memory.kv_bytes,
        "workspace_gb": memory.activations_bytes + memory.engine_bytes,
        "activations_gb": memory.activations_bytes,
        "engine_gb": memory.engine_bytes,
        "peak_gb": memory.peak_bytes,
        "rank_gb": memory.rank_bytes,
        "capacity_gb": memory.capacity_bytes,
    }
    return (
        {"fits": memory.fits}
        | {name: None if size is None else size / BYTES_PER_GB for name, size in sizes.items()}
        | {
            "gpus": memory.gpus,
            "gpus_needed": memory.gpus_needed,
            "largest_batch": memory.largest_batch,
            "largest_context": memory.largest_context,
            "notes": list(memory.notes),
        }
    )


def unanswered_json(unanswered: Unanswered) -> dict[str, Any]:
    """Return a deployment that is not predicted, in the schema of one that is."""
    return {
        "schema": SCHEMA,
        "deployment": unanswered.about | {"precision": unanswered.precision},
        "answer": None,
        "basis": None,
        "memory": memory_json(unanswered.memory),
        "refusals": [
            {name: printable(text) for name, text in refusal._asdict().items()}
            for refusal in unanswered.refusals
        ],
        "predictors": [],
        "modules": [],
        "besides": {},
        "caveats": [],
        "graphs": None,
        "curve": [],
    }
