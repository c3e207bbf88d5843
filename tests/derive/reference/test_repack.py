"""Kernels that are read and sealed again: no number changes, and the old takes can be removed."""

import base64
import lzma

import pytest
from msgspec import msgpack
from msgspec.structs import replace
from nearfree.core.scopes import PUBLIC
from nearfree.derive.reference.packing import unpacked
from nearfree.derive.reference.record import STREAM, newest_kernels, recorded_kernels, scale_of
from nearfree.derive.reference.repack import repack_kernels
from nearfree.errors import EvidenceError
from nearfree.log.events import BandsCalibrated, KernelReferenced, RegimeBand
from nearfree.log.evidence import read_scope, read_take
from nearfree.log.line import sha256
from nearfree.log.names import Layout

from derive.reference.kept import kept_on_two
from derive.reference.test_record import put


def as_they_are(event: KernelReferenced) -> KernelReferenced:
    """Return a kernel as event version 1 packs it."""
    curves = unpacked(event.packed, scale_of(event), stepped=True)
    text = base64.b85encode(lzma.compress(msgpack.encode(curves))).decode()
    return replace(event, packed=text, stepped=False)


def bands(**of: float) -> BandsCalibrated:
    """Return bands of products, by format."""
    rows = (
        RegimeBand(regime="R2", module="gemm", formats=name, routing="", band=band, curves=9)
        for name, band in of.items()
    )
    return BandsCalibrated(epsilon=0.2, covered=0.8, bands=tuple(rows))


NEW = kept_on_two()
OLD = [as_they_are(event) for event in NEW]


def test_what_is_read_is_sealed_again_as_it_was(layout: Layout) -> None:
    """Kernels and bands are sealed with equal values; those that newer takes replaced are not."""
    changed = replace(OLD[0], constants={"tile_16": {"sharpness": 2.0}})
    put(layout, changed, *OLD[1:3], bands(bfloat16=0.1, float8=0.2))
    put(layout, OLD[0], bands(float8=0.3), take=2)
    put(layout, NEW[3], take=3)
    first, second, third = layout.takes(PUBLIC, STREAM)
    kernels, known = newest_kernels(layout)
    seal = repack_kernels(layout)
    take = read_take(layout, seal.name)
    assert take.started.data.plan.files == {
        str(name): sha256(layout.seal(name).read_bytes()) for name in (first, second, third)
    }
    assert {event.data.packed for event in take.events_of(KernelReferenced)} == {
        event.packed for event in NEW[:4]
    }
    after, again = newest_kernels(layout)
    assert {key: replace(event.data, packed="", stepped=True) for key, event in after.items()} == {
        key: replace(event.data, packed="", stepped=True) for key, event in kernels.items()
    }
    assert again.keys() == known.keys()
    assert [event.data for event in take.events_of(BandsCalibrated)] == [
        bands(bfloat16=0.1), bands(float8=0.3),
    ]  # fmt: skip
    read = {event.rpartition(".")[0] for event in recorded_kernels(layout)}
    assert read == {str(seal.name)}


def test_nothing_is_packed_twice(layout: Layout) -> None:
    """A single take in the newest version is left as it is, with a message; nothing is sealed."""
    put(layout, *NEW, bands(bfloat16=0.1))
    with pytest.raises(EvidenceError, match="public/kernels are packed already"):
        repack_kernels(layout)
    assert len(read_scope(layout, PUBLIC, stream=STREAM)) == 1
