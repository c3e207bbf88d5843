"""What a deployment takes in memory, and why a forward is not predicted, in words and as data."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from nearfree.derive.memory import Memory
from nearfree.derive.predict.forecast.asked_model import Unanswered
from nearfree.derive.predict.forecast.deployment import Deployment
from nearfree.errors import printable
from nearfree.units import BYTES_PER_GB

SCHEMA = "nearfree.predict.v1"
"""The form of `nearfree predict --format json`: a later form has another number."""


def gb(size: int) -> str:
    """Return bytes in decimal GB."""
    return f"{size / BYTES_PER_GB:.1f} GB"


def unfit(memory: Memory | None) -> bool:
    """Return whether it is known that a deployment does not fit."""
    return memory is not None and memory.fits is False


def verdict(memory: Memory | None, platform: str) -> str:
    """Return one line: whether it fits, on how much, and what would."""
    if memory is None:
        return "memory: not known, since it is not known what the model stores"
    parts = (
        f"weights {gb(memory.weights_bytes)}, cache {gb(memory.kv_bytes)}, activations "
        f"{gb(memory.activations_bytes)}, allowed for the engine {gb(memory.engine_bytes)}"
    )
    if memory.drafter_bytes:
        parts += f", drafter {gb(memory.drafter_bytes)}"
    if memory.capacity_bytes is None:
        return f"memory: {gb(memory.peak_bytes)} ({parts}); that of {platform} is not known"
    of = f"{gb(memory.peak_bytes)} of {gb(memory.capacity_bytes)} on {memory.gpus} {platform}"
    if memory.gpus > 1:
        of += f", {gb(memory.rank_bytes)} on the one with most"
    needed = "no number of them holds it by --tp alone (--pp and --dp part the cache further)"
    if memory.gpus_needed:
        needed = f"{memory.gpus_needed} {platform} hold it"
    if memory.fits:
        return f"memory: {of} ({parts})"
    return f"DOES NOT FIT: {of} ({parts})" + ("" if memory.drafter_bytes else f"; {needed}")


def largest(memory: Memory) -> str:
    """Return how many requests and how long contexts fit beside the others that are asked for."""
    return (
        f"largest batch at this context: {_limit(memory.largest_batch)}; "
        f"largest context at this batch, by memory alone: {_limit(memory.largest_context)}"
    )


def memory_lines(memory: Memory | None, platform: str) -> Iterator[str]:
    """Yield what fits; the first line says where a deployment does not."""
    yield verdict(memory, platform)
    if memory is not None and memory.capacity_bytes is not None:
        yield f"  {largest(memory)}"
        yield from (f"  {note}" for note in memory.notes)


def warning_lines(queries: Sequence[Deployment]) -> Iterator[str]:
    """Yield a line for each model and platform that has conditions which do not fit.

    And one for each model that has contexts which are longer than its file allows, and for each
    caveat of a model's T(N).
    """
    found: dict[tuple[str, str], list[Deployment]] = {}
    for query in queries:
        if unfit(query.memory):
            found.setdefault((query.decoder.name, query.platform), []).append(query)
    for (model, platform), unfits in found.items():
        least = min(unfits, key=lambda query: query.memory.peak_bytes if query.memory else 0)
        first = next(memory_lines(least.memory, platform))
        yield (f"{model} on {platform}, from b = {least.batch} at L = {least.context} on: {first}")
    longer: dict[str, list[Deployment]] = {}
    for query in queries:
        if query.too_long:
            longer.setdefault(query.decoder.name, []).append(query)
    for model, others in longer.items():
        shortest = min(others, key=lambda query: query.context)
        yield f"{model}, from L = {shortest.context} on: {shortest.too_long}"
    every = ((query.decoder.name, each) for query in queries for each in _lasting(query))
    yield from (f"{model}, of T(N): {caveat}" for model, caveat in dict.fromkeys(every))


def _lasting(query: Deployment) -> tuple[str, ...]:
    """Return the caveats of a deployment, less that of a context, which differs by its length."""
    return tuple(each for each in query.caveats if each != query.too_long)


def _limit(value: int | None) -> str:
    return "not limited by memory" if value is None else f"{value:,}" if value else "none"


def unanswered_lines(each: Unanswered) -> Iterator[str]:
    """Yield what is known of a deployment whose forward is not predicted; nothing may be."""
    if each.memory is None:
        return
    about = each.about
    lines = list(memory_lines(each.memory, about["platform"]))
    where = shared(about["platform"], about["parallel"])
    title = f"{about['model']} on {where}, batch {about['batch']}, context {about['context']}"
    yield from (*lines, title) if unfit(each.memory) else (title, *lines)


def shared(platform: str, said: Mapping[str, int]) -> str:
    """Return a platform and, of several GPUs, how many and how they share a model.

    Parameters
    ----------
    said
        The degrees by name, with the GPUs that they make, as `Parallel.said`.
    """
    degrees = {name: each for name, each in said.items() if name != "gpus"}
    spread = ", ".join(f"{name} {each}" for name, each in degrees.items() if each > 1)
    return f"{said['gpus']} {platform} ({spread})" if spread else platform


def memory_json(memory: Memory | None) -> dict[str, Any] | None:
    """Return a memory's verdict and its sizes in GB, all GPUs together, None where not known.

    `workspace_gb` is what activations and the engine take; `rank_gb` is what the GPU with most
    holds.
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
        | {name: None if of is None else of / BYTES_PER_GB for name, of in sizes.items()}
        | {
            "gpus": memory.gpus,
            "gpus_needed": memory.gpus_needed,
            "largest_batch": memory.largest_batch,
            "largest_context": memory.largest_context,
            "notes": list(memory.notes),
        }
    )


def unanswered_json(each: Unanswered) -> dict[str, Any]:
    """Return a deployment whose forward is not predicted, in the form of one that is."""
    return {
        "schema": SCHEMA,
        "deployment": each.about | {"precision": each.precision},
        "answer": None,
        "basis": None,
        "memory": memory_json(each.memory),
        "refusals": [
            {name: printable(text) for name, text in refusal._asdict().items()}
            for refusal in each.refusals
        ],
        "predictors": [],
        "modules": [],
        "besides": {},
        "caveats": [],
        "graphs": None,
        "curve": [],
    }
