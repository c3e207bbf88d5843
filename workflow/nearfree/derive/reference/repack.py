"""Repack the kernels on record: seal them again, in fewer bytes.

No number changes, except T at a curve's first N by up to a tenth of a percent.
"""

from collections.abc import Iterator

from msgspec import structs

from nearfree.core.plan import CalibratePlan
from nearfree.core.scopes import PUBLIC
from nearfree.derive.reference.calibrate import FORM
from nearfree.derive.reference.packing import first_us_codes, first_us_of, packed_text, unpacked
from nearfree.derive.reference.record import (
    STREAM,
    band_key,
    kernel_takes,
    newest_kernels,
    scale_of,
)
from nearfree.errors import EvidenceError
from nearfree.log.events import KernelReferenced, Payload
from nearfree.log.names import Layout, parse_take
from nearfree.log.seal import Seal
from nearfree.log.take import ensure_events, take_name


def repack_kernels(layout: Layout) -> Seal:
    """Seal one take of all kernels on record, with their curves packed as steps.

    Its plan names the takes that it replaces, with the SHA-256 of their seals; these are not read
    any more. Raises EvidenceError if there are no kernels, or they are packed in one take already.
    """
    kernels, bands = newest_kernels(layout)
    takes = kernel_takes(layout)
    events_of_kernels = list(kernels.values())
    if len(takes) < 2 and all(kernel.data.stepped for kernel in events_of_kernels):
        raise EvidenceError(
            f"the kernels of {PUBLIC}/{STREAM} are packed already",
            remedy="Nothing is left to do",
        )
    plan = CalibratePlan(
        source=STREAM,
        files=takes,
        platforms=tuple(sorted({kernel.data.platform for kernel in events_of_kernels})),
        epsilon=max(kernel.data.epsilon for kernel in events_of_kernels),
        form=FORM,
    )

    def events() -> Iterator[Payload]:
        yield from (repacked(kernel.data) for kernel in events_of_kernels)
        for event in {event.event_id: event for event in bands.values()}.values():
            newest_bands = (band for band in event.data.bands if bands.get(band_key(band)) is event)
            yield structs.replace(event.data, bands=tuple(newest_bands))

    name = take_name(PUBLIC, STREAM, max(parse_take(take).take for take in takes), plan)
    return ensure_events(layout, name, plan, "nearfree repack", events)


def repacked(kernel: KernelReferenced) -> KernelReferenced:
    """Return a kernel with its curves packed as steps and logarithms, from any packing."""
    scale = scale_of(kernel)
    curves = unpacked(kernel.packed, scale, stepped=kernel.stepped)
    first_us = first_us_codes(first_us_of(curves.first_us, kernel.curves))
    if kernel.stepped and first_us == curves.first_us:
        return kernel
    curves = structs.replace(curves, first_us=first_us)
    return structs.replace(kernel, packed=packed_text(curves, scale), stepped=True)
