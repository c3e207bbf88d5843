"""What runs attention where nobody says it, and why what is named does not run a model's."""

from collections.abc import Iterator, Sequence

from nearfree.backends.attention_order import ATTENTION_ORDER, ENGINE_ATTENTION
from nearfree.backends.names import BackendRelease
from nearfree.backends.record import Backend
from nearfree.backends.records import BY_NAME, of_engine
from nearfree.core.modules.attention import ATTENTION
from nearfree.core.modules.attention_layer import ATTENTION_LAYER
from nearfree.core.modules.indexer import INDEXER
from nearfree.core.modules.mla import MLA
from nearfree.core.precision import PLAIN, Precision
from nearfree.decoders.attention_kinds import (
    Cached,
    Compressed,
    Grouped,
    State,
    in_blocks,
)
from nearfree.decoders.decoder import Decoder
from nearfree.errors import Refusal

_WIDEST = 256
"""Elements of the widest head for which an engine takes its first choice."""


def chosen(
    decoder: Decoder | None, precision: Precision | None, sm: int | None, engine: BackendRelease
) -> Iterator[str]:
    """Yield what may run a model's attention on a device where nobody says it, as users write it.

    The first is what runs where its rules are on record.

    Parameters
    ----------
    decoder, precision
        None where they are not known.
    sm
        The device's compute capability, 90 for 9.0, None without one.
    engine
        What serves the model: attention runs by the kernel that it takes on the device.
    """
    kinds = decoder.attention if decoder else ()
    plain = precision is None or precision.kv in PLAIN
    usual = [*ATTENTION_ORDER][0 if plain else -1]
    cache = [kind for kind in kinds if not (isinstance(kind, State) or in_blocks(kind))]
    own = next((kind for kind in cache if not isinstance(kind, Grouped)), None)
    if own is not None:
        module = ATTENTION_LAYER if isinstance(own, Compressed) else MLA
        record = of_engine(engine.name, module.name) or BY_NAME[usual]
        yield f"{record.names[0]}=={engine.version}" if engine.version else record.names[0]
        return
    for name, where in _order(engine.name, sm, [k for k in cache if isinstance(k, Grouped)]):
        record = BY_NAME[name]
        cached = plain or precision is None or precision.kv in (record.caches or ())
        if cached and _on(record, sm, where) and not any(_lacking(record, kind) for kind in cache):
            yield record.names[0]
    yield BY_NAME[usual].names[0]


def _order(engine: str, sm: int | None, kinds: Sequence[Grouped]) -> Iterator[tuple[str, range]]:
    """Yield backends of grouped attention, an engine's own choice first, and where each is.

    An engine takes it for heads of up to 256 elements (vllm-project/vllm at 0052a5b8,
    vllm/v1/attention/backends/flashinfer.py, get_supported_head_sizes).
    """
    narrow = all(kind.head_dim <= _WIDEST for kind in kinds)
    sinks = any(kind.sinks for kind in kinds)
    for taken in ENGINE_ATTENTION.get(engine, ()):
        if sm in taken.where and narrow and (taken.sinks or not sinks):
            yield taken.name, taken.where
    yield from ATTENTION_ORDER.items()


def _on(record: Backend, sm: int | None, where: range) -> bool:
    if sm is None:
        return not where.start
    return sm in where and (not record.capabilities or sm in record.capabilities)


def untaken(decoder: Decoder, release: BackendRelease) -> Iterator[Refusal]:
    """Yield why a backend has no kernel for layers of a model, and which backends have."""
    record = BY_NAME[release.name]
    for kind in decoder.attention:
        # An engine runs these by kernels of its own, whatever runs attention.
        if isinstance(kind, State) or in_blocks(kind):
            continue
        lacking = _lacking(record, kind)
        if lacking:
            takers = [
                each.names[0]
                for each in BY_NAME.values()
                if each.names and (each.rules or not isinstance(kind, Grouped))
                if not _lacking(each, kind)
            ]
            where = f"{len(kind.layers)} layers ({kind.words})"
            remedy = " or ".join(f"--attention {name}" for name in takers)
            reason = f"{release.name} has no kernel for the attention of {where}: {lacking}"
            yield Refusal("", "", reason, f"Ask with {remedy}" if takers else "Name another model")


_UNVERIFIED = {
    "sglang": (
        "verifies no drafts of a model that attends to selected blocks: on a GPU of NVIDIA they "
        "are prefilled outside of its CUDA graphs, and with MSA it does not start (sglang 0.5.23, "
        "sglang/srt/layers/attention/minimax_sparse_backend.py:293-304 and 1456-1640)"
    ),
    "trtllm": (
        "attends to selected blocks by kernels whose forward of several positions is not read"
    ),
}


def unverified(decoder: Decoder, engine: BackendRelease) -> Iterator[Refusal]:
    """Yield why an engine has no forward of several positions of a model."""
    if decoder.in_blocks and engine.name in _UNVERIFIED:
        yield Refusal("", "moe", f"{engine.name} {_UNVERIFIED[engine.name]}", "Ask with --moe vllm")


def _lacking(record: Backend, kind: Cached) -> str:
    """Return what of a kind a backend's kernels do not take; empty if they take all."""
    if isinstance(kind, Compressed):
        taken = ATTENTION_LAYER.name in record.modules
        return "" if taken else "none is of entries that stand for several positions"
    if not isinstance(kind, Grouped):
        lacks = [*([] if MLA.name in record.modules else ["a latent"])]
        if kind.index_heads and INDEXER.name not in record.modules:
            lacks.append("an indexer of positions")
        return f"none is of {' and '.join(lacks)}" if lacks else ""
    reasons = {
        "none is of grouped queries": ATTENTION.name not in record.modules,
        f"heads of {kind.head_dim} elements are wider than {record.widest}": (
            kind.head_dim > record.widest
        ),
        "heads have a logit that is no position's (sinks)": kind.sinks and not record.sinks,
        f"keys have {kind.head_dim} elements and values {kind.value_dim}": bool(
            kind.value_dim and not record.values_apart
        ),
    }
    return next((what for what, lacking in reasons.items() if lacking), "")
