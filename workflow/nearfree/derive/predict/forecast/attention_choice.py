"""What runs attention where nobody says it, and why what is named does not run a model's."""

from collections.abc import Iterator

from nearfree.backends.names import BackendRelease
from nearfree.backends.records import BY_NAME, Backend, running
from nearfree.core.modules.attention import ATTENTION
from nearfree.core.precision import PLAIN, Precision
from nearfree.decoders.attention_kinds import Grouped, Kind
from nearfree.decoders.decoder import Decoder
from nearfree.errors import Refusal

_PREFERRED = ("flash_attn", "vllm_fa3", "flash_attn_4", "flashinfer_fa2")
"""Backends of grouped attention, of which the first runs that takes all layers and the cache."""


def chosen(decoder: Decoder | None, precision: Precision | None, sm: int | None) -> str:
    """Return the name of what runs a model's attention on a device where nobody says it.

    Parameters
    ----------
    decoder, precision
        None where they are not known.
    sm
        The device's compute capability, 90 for 9.0, None without one.
    """
    kinds = decoder.attention if decoder else ()
    plain = precision is None or precision.kv in PLAIN
    for name in _PREFERRED:
        record = BY_NAME[name]
        cached = plain or precision is None or precision.kv in (record.caches or ())
        runs = not (record.capabilities and sm and sm not in record.capabilities)
        if cached and runs and not any(_lacking(record, kind) for kind in kinds):
            return record.names[0]
    return BY_NAME[_PREFERRED[0 if plain else -1]].names[0]


def untaken(decoder: Decoder, release: BackendRelease) -> Iterator[Refusal]:
    """Yield why a backend has no kernel for layers of a model, and which backends have."""
    record = BY_NAME[release.name]
    for kind in decoder.attention:
        lacking = _lacking(record, kind)
        if lacking:
            takers = [
                each.names[0]
                for each in running(ATTENTION.name).values()
                if each.names and each.rules and not _lacking(each, kind)
            ]
            where = f"{len(kind.layers)} layers ({kind.words})"
            remedy = " or ".join(f"--attention {name}" for name in takers)
            reason = f"{release.name} has no kernel for the attention of {where}: {lacking}"
            yield Refusal("", "", reason, f"Ask with {remedy}" if takers else "Name another model")


def _lacking(record: Backend, kind: Kind) -> str:
    """Return what of a kind a backend's kernels do not take; empty if they take all."""
    if not isinstance(kind, Grouped):
        return ""
    if kind.head_dim > record.widest:
        return f"heads of {kind.head_dim} elements are wider than {record.widest}"
    if kind.sinks and not record.sinks:
        return "heads have a logit that is no position's (sinks)"
    return ""
