"""Compare rules with a binary: the tile rows that a rule answers, and those that the binary holds.

A point is a kernel (its widths, element type, mask, paging, splits, packed heads) on a device.
There the binary must hold every tile that the rules can answer, and no tile that the rules answer
on no device: the code for one architecture also holds tiles that the source takes on others.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping

from msgspec import Struct, convert
from msgspec.structs import asdict, astuple, replace

from nearfree.errors import EvidenceError
from nearfree.log.events import HeldKernel
from nearfree.sources.backends.vllm_fa3 import WINDOW_KERNEL
from nearfree.sources.binaries.answers import (
    ANY_DTYPE,
    SECOND_DEVICES,
    THIRD_DEVICES,
    Kernel,
    Rules,
    answers,
)

WINDOW = "the rules are of calls without a window"
ELEMENTS = "the rules are of elements of 16 bits"
WIDTHS = "the rules are of values as wide as keys"


class Point(Kernel, frozen=True, omit_defaults=True, kw_only=True):
    """A kernel on a device at which a rule and a binary are compared; sm is 90 for 9.0."""

    sm: int


class Difference(Struct, frozen=True):
    """Tile rows by the rules and in the binary; why they may differ, None if unexplained."""

    point: Point
    rule: tuple[int, ...]
    binary: tuple[int, ...]
    explained: str | None


class Comparison(Struct, frozen=True):
    """The number of points compared, and where rules and binary differ."""

    points: int
    differences: tuple[Difference, ...]


_RowsByKernel = Mapping[tuple[Kernel, int], set[int]]
"""Tile rows by kernel and device, or by kernel and architecture of the code."""


def compare(rules: Rules, held: Iterable[HeldKernel]) -> Comparison:
    """Return where the rules of a release and the kernels of a binary differ.

    Raises
    ------
    EvidenceError
        The rules have no known form, or the binary holds no kernel that they answer for.
    """
    rows_in_binary: defaultdict[tuple[Kernel, int], set[int]] = defaultdict(set)
    for each in held:
        kernel = convert(each, Kernel, from_attributes=True)
        rows_in_binary[kernel, each.code].add(each.rows)
    in_binary = {kernel for kernel, _ in rows_in_binary}
    answered, windows = _answered_rows(rules, in_binary), WINDOW_KERNEL in rules
    differences: list[Difference] = []
    points = 0
    for kernel in _kernels(in_binary, {kernel for kernel, _ in answered}, windows=windows):
        codes = {code for other, code in rows_in_binary if other.kernel == kernel.kernel}
        ruled_kernel = replace(kernel, dtype=ANY_DTYPE)
        rows_anywhere = set[int]().union(
            *(answered.get((ruled_kernel, sm), ()) for sm in SECOND_DEVICES)
        )
        for sm in THIRD_DEVICES.get(kernel.kernel, SECOND_DEVICES):
            points += 1
            rule_rows = answered.get((ruled_kernel, sm), set())
            held_rows = rows_in_binary.get((kernel, _running_code(codes, sm)), set())
            if rule_rows - held_rows or held_rows - rows_anywhere:
                differences.append(
                    Difference(
                        Point(**asdict(kernel), sm=sm),
                        rule=tuple(sorted(rule_rows)),
                        binary=tuple(sorted(held_rows)),
                        explained=_unruled_reason(kernel, windows=windows),
                    )
                )
    return Comparison(points, tuple(differences))


def _unruled_reason(kernel: Kernel, *, windows: bool) -> str | None:
    """Return why the rules do not cover a kernel; None where they cover it."""
    reasons = (
        (kernel.value_dim != kernel.head_dim, WIDTHS),
        (kernel.mask == "window" and not windows, WINDOW),
        (kernel.dtype == "float8", ELEMENTS),
    )
    return "; ".join(text for applies, text in reasons if applies) or None


def _running_code(codes: Iterable[int], sm: int) -> int:
    """Return the architecture whose code a device runs.

    It is the newest of the device's own generation, else the newest of an earlier one, from whose
    stored PTX the driver compiles.
    """
    older = [code for code in codes if code <= sm]
    own = [code for code in older if code // 10 == sm // 10]
    return max(own or older, default=0)


def _kernels(in_binary: set[Kernel], answered: set[Kernel], *, windows: bool) -> list[Kernel]:
    """Return the kernels of the binary and those that the rules answer for, in each 16-bit type.

    Where no rule covers windows, a window kernel is compared only if the binary holds it.
    """
    kernels = set(in_binary)
    dtypes = defaultdict(set)
    for kernel in in_binary:
        if kernel.dtype != "float8":
            dtypes[kernel.kernel].add(kernel.dtype)
    for kernel in answered:
        if kernel.mask != "window" or windows:
            kernels |= {replace(kernel, dtype=dtype) for dtype in dtypes[kernel.kernel]}
    return sorted(kernels, key=lambda kernel: list(map(str, astuple(kernel))))


def _answered_rows(rules: Rules, in_binary: Iterable[Kernel]) -> _RowsByKernel:
    """Return the rows that the rules answer; a head runs the narrowest kernel that it fits."""
    widths = defaultdict(set)
    for held in in_binary:
        if held.head_dim == held.value_dim:
            widths[held.kernel].add(held.head_dim)
    rows: defaultdict[tuple[Kernel, int], set[int]] = defaultdict(set)
    for kernel, sm, tile_rows in answers(rules):
        fits = [width for width in widths[kernel.kernel] if width >= kernel.head_dim]
        if fits:
            width = min(fits)
            rows[replace(kernel, head_dim=width, value_dim=width), sm].add(tile_rows)
    if not rows:
        raise EvidenceError(
            "the rules answer for no kernel that the binary holds",
            remedy="Compare it with the rules of the same kernels",
        )
    return rows
