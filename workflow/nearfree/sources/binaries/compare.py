"""Compare rules with a binary: the tile rows that a rule answers, and those that the binary holds.

A point is a kernel (its widths, element type, mask, paging, splits, packed heads) on a device.
There the binary must hold every tile that the rules can answer, and no tile that the rules answer
on no device: the code for one architecture also holds tiles that the source takes on others.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping

from msgspec import Struct
from msgspec.structs import replace

from nearfree.errors import EvidenceError
from nearfree.log.events import HeldKernel
from nearfree.sources.backends.vllm_fa3 import WINDOW_KERNEL
from nearfree.sources.binaries.answers import SECOND_DEVICES, THIRD_DEVICES, Rules, answers

WINDOW = "the rules are of calls without a window"
ELEMENTS = "the rules are of elements of 16 bits"
WIDTHS = "the rules are of values as wide as keys"


class Kernel(Struct, frozen=True, omit_defaults=True, kw_only=True):
    """A kernel, by the traits that both rules and binaries tell; an unknown trait is left out."""

    kernel: str
    head_dim: int
    value_dim: int
    dtype: str
    mask: str
    split: bool
    paged: bool | None = None
    pack: bool | None = None


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


_Rows = frozenset[int]
_AnsweredRows = Mapping[Kernel, Mapping[int, _Rows]]
"""Rows by device of each kernel that the rules answer for, whatever its element type."""
_ANY_DTYPE = ""


def compare(rules: Rules, held: Iterable[HeldKernel]) -> Comparison:
    """Return where the rules of a release and the kernels of a binary differ.

    Raises
    ------
    EvidenceError
        The rules have no known form, or the binary holds no kernel that they answer for.
    """
    rows_in_binary: defaultdict[Kernel, defaultdict[int, set[int]]] = defaultdict(
        lambda: defaultdict(set)
    )
    for held_kernel in held:
        rows_in_binary[_kernel(held_kernel)][held_kernel.code].add(held_kernel.rows)
    answered, windows = _rows_by_kernel(rules, rows_in_binary), WINDOW_KERNEL in rules
    differences: list[Difference] = []
    points = 0
    for kernel in _kernels(rows_in_binary, answered, windows=windows):
        by_device = answered.get(replace(kernel, dtype=_ANY_DTYPE), {})
        rows_anywhere = frozenset[int]().union(*by_device.values())
        codes = {
            code
            for other in rows_in_binary
            if other.kernel == kernel.kernel
            for code in rows_in_binary[other]
        }
        for sm in THIRD_DEVICES.get(kernel.kernel, SECOND_DEVICES):
            points += 1
            rule_rows = by_device.get(sm, frozenset())
            held_rows = frozenset[int]()
            if kernel in rows_in_binary:
                held_rows = frozenset(rows_in_binary[kernel][_running_code(codes, sm)])
            if rule_rows - held_rows or held_rows - rows_anywhere:
                point = Point(**{name: getattr(kernel, name) for name in _FIELDS}, sm=sm)
                differences.append(
                    Difference(
                        point,
                        rule=tuple(sorted(rule_rows)),
                        binary=tuple(sorted(held_rows)),
                        explained=_unruled_reason(kernel, windows=windows),
                    )
                )
    return Comparison(points, tuple(differences))


_FIELDS = Kernel.__struct_fields__


def _kernel(held: HeldKernel) -> Kernel:
    return Kernel(**{name: getattr(held, name) for name in _FIELDS})


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


def _kernels(
    in_binary: Collection[Kernel], answered: _AnsweredRows, *, windows: bool
) -> list[Kernel]:
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
    return sorted(kernels, key=lambda kernel: [str(getattr(kernel, name)) for name in _FIELDS])


def _rows_by_kernel(rules: Rules, in_binary: Iterable[Kernel]) -> _AnsweredRows:
    """Return the rows that the rules answer; a head runs the narrowest kernel that it fits."""
    widths = defaultdict(set)
    for held in in_binary:
        if held.head_dim == held.value_dim:
            widths[held.kernel].add(held.head_dim)
    rows: defaultdict[Kernel, defaultdict[int, set[int]]] = defaultdict(lambda: defaultdict(set))
    for answer in answers(rules):
        fits = [width for width in widths[answer.kernel] if width >= answer.width]
        if fits:
            kernel = Kernel(
                kernel=answer.kernel,
                head_dim=min(fits),
                value_dim=min(fits),
                dtype=_ANY_DTYPE,
                mask=answer.mask,
                split=answer.split,
                paged=answer.paged,
                pack=answer.pack,
            )
            rows[kernel][answer.sm].add(answer.rows)
    if not rows:
        raise EvidenceError(
            "the rules answer for no kernel that the binary holds",
            remedy="Compare it with the rules of the same kernels",
        )
    return {
        kernel: {sm: frozenset(tile_rows) for sm, tile_rows in devices.items()}
        for kernel, devices in rows.items()
    }
