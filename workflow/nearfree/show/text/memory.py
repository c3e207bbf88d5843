"""What a deployment takes in memory, and why a forward is not predicted, in words and as data."""

from collections.abc import Iterator, Sequence
from typing import Any

from nearfree.derive.memory import Memory
from nearfree.derive.outlook.about import MEMORY
from nearfree.derive.predict.forecast.asked_model import Unanswered
from nearfree.derive.predict.forecast.deployment import Deployment
from nearfree.errors import printable
from nearfree.units import BYTES_PER_GB


def gb(size: int) -> str:
    """Return bytes in decimal GB."""
    return f"{size / BYTES_PER_GB:.1f} GB"


def unfit(memory: Memory | None) -> bool:
    """Return whether it is known that a deployment does not fit."""
    return memory is not None and memory.fits is False


def memory_lines(memory: Memory | None, platform: str) -> Iterator[str]:
    """Yield what fits; the first line says where a deployment does not."""
    if memory is None:
        yield "memory: not known, since it is not known what the model stores"
        return
    parts = (
        f"weights {gb(memory.weights_bytes)}, cache {gb(memory.kv_bytes)}, activations "
        f"{gb(memory.activations_bytes)}, allowed for the engine {gb(memory.engine_bytes)}"
    )
    gpus = f"{memory.gpus} {platform}"
    if memory.capacity_bytes is None:
        yield f"memory: {gb(memory.peak_bytes)} ({parts}); that of {platform} is not known"
        return
    of = f"{gb(memory.peak_bytes)} of {gb(memory.capacity_bytes)} on {gpus}"
    needed = "no number of them holds it"
    if memory.gpus_needed:
        needed = f"{memory.gpus_needed} {platform} hold it"
    if memory.gpus > 1:
        of += f", {gb(memory.rank_bytes)} on the one with most"
    if not memory.fits:
        yield f"DOES NOT FIT: {of} ({parts}); {needed}"
    else:
        yield f"memory: {of} ({parts})"
    yield (
        f"  largest batch at this context: {_limit(memory.largest_batch)}; "
        f"largest context at this batch: {_limit(memory.largest_context)}"
    )
    yield from (f"  {note}" for note in memory.notes)


def unfit_lines(queries: Sequence[Deployment]) -> Iterator[str]:
    """Yield a line for each model and platform that has conditions which do not fit."""
    found: dict[tuple[str, str], list[Deployment]] = {}
    for query in queries:
        if unfit(query.memory):
            found.setdefault((query.decoder.name, query.platform), []).append(query)
    for (model, platform), unfits in found.items():
        least = min(unfits, key=lambda query: query.memory.peak_bytes if query.memory else 0)
        first = next(memory_lines(least.memory, platform))
        yield (f"{model} on {platform}, from b = {least.batch} at L = {least.context} on: {first}")


def _limit(value: int | None) -> str:
    return "not limited by memory" if value is None else f"{value:,}" if value else "none"


def unanswered_lines(each: Unanswered) -> Iterator[str]:
    """Yield what is known of a deployment whose forward is not predicted; nothing may be."""
    if each.memory is None:
        return
    about = each.about
    lines = list(memory_lines(each.memory, about["platform"]))
    title = f"{about['model']} on {about['platform']}, b = {about['batch']}, L = {about['context']}"
    yield from (*lines, title) if unfit(each.memory) else (title, *lines)


def memory_json(memory: Memory | None) -> dict[str, Any] | None:
    """Return a memory's verdict and sizes by name, None where it is not known."""
    return None if memory is None else {name: getattr(memory, name) for name in MEMORY}


def unanswered_json(each: Unanswered) -> dict[str, Any]:
    """Return a deployment whose forward is not predicted, in the form of one that is."""
    return {
        "deployment": each.about | {"precision": each.precision},
        "memory": memory_json(each.memory),
        "refusals": [
            {name: printable(text) for name, text in refusal._asdict().items()}
            for refusal in each.refusals
        ],
        "answers": [],
        "modules": [],
        "besides": {},
        "graphs": None,
        "curve": [],
    }
