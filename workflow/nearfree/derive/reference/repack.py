"""What is read of kernels, sealed again in fewer bytes.

Not a number of it changes, but T at a curve's first N by up to a tenth of a percent.
"""

from collections.abc import Iterator

from msgspec import structs

from nearfree.core.plan import CalibratePlan
from nearfree.core.scopes import PUBLIC
from nearfree.derive.reference.calibrate import FORM
from nearfree.derive.reference.packing import first_us_of, opened, squeezed, told
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
    """Seal one take of all that is read of kernels, curves packed as steps.

    Its plan names the takes that it is from with the SHA-256 of their seals; nothing is read of
    them any more.

    Raises
    ------
    EvidenceError
        There are no kernels, or it is one take already that is packed so.
    """
    kernels, bands = newest_kernels(layout)
    takes = kernel_takes(layout)
    mine = list(kernels.values())
    if len(takes) < 2 and all(each.data.stepped for each in mine):
        raise EvidenceError(
            f"what is read of {PUBLIC}/{STREAM} takes no more bytes than it needs",
            remedy="Nothing is left to do",
        )
    plan = CalibratePlan(
        source=STREAM,
        files=takes,
        platforms=tuple(sorted({each.data.platform for each in mine})),
        epsilon=max(each.data.epsilon for each in mine),
        form=FORM,
    )

    def events() -> Iterator[Payload]:
        yield from (repacked(each.data) for each in mine)
        for event in {each.event_id: each for each in bands.values()}.values():
            still = (each for each in event.data.bands if bands.get(band_key(each)) is event)
            yield structs.replace(event.data, bands=tuple(still))

    name = take_name(PUBLIC, STREAM, max(parse_take(each).take for each in takes), plan)
    return ensure_events(layout, name, plan, "nearfree repack", events)


def repacked(kernel: KernelReferenced) -> KernelReferenced:
    """Return a kernel whose curves are packed as steps and logarithms, whatever they were."""
    scale = scale_of(kernel)
    curves = opened(kernel.packed, scale, stepped=kernel.stepped)
    first_us = told(first_us_of(curves.first_us, kernel.curves))
    if kernel.stepped and first_us == curves.first_us:
        return kernel
    curves = structs.replace(curves, first_us=first_us)
    return structs.replace(kernel, packed=squeezed(curves, scale), stepped=True)
