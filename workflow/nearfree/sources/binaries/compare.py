"""Rules against a binary: at every point the rows that a rule answers, and those that are held.

A point is a kernel (its widths, element type, mask, pages, splits, packed heads) on a device. There
the binary must hold every tile that the rules can answer, and no other than they answer on some
device: the code for one architecture holds what the source takes on others, too.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping

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
    """A kernel as rules and binaries tell it from others; what it does not know is left out."""

    kernel: str
    head_dim: int
    value_dim: int
    dtype: str
    mask: str
    split: bool
    paged: bool | None = None
    pack: bool | None = None


class Point(Kernel, frozen=True, omit_defaults=True, kw_only=True):
    """Where a rule and a binary are compared: a kernel on a device, 90 for 9.0."""

    sm: int


class Difference(Struct, frozen=True):
    """Rows of a tile by the rules and in the binary; why they may differ, None if unexplained."""

    point: Point
    rule: tuple[int, ...]
    binary: tuple[int, ...]
    explained: str | None


class Comparison(Struct, frozen=True):
    """How many points were compared, and where rules and binary differ."""

    points: int
    differences: tuple[Difference, ...]


_Rows = frozenset[int]
_Answered = Mapping[Kernel, Mapping[int, _Rows]]
"""Rows by device of what the rules speak of; its element type is left open."""
_OPEN = ""


def compare(rules: Rules, held: Iterable[HeldKernel]) -> Comparison:
    """Return where the rules of a release and the kernels of a binary differ.

    Raises
    ------
    EvidenceError
        The rules are of no known form, or the binary holds no kernel that they speak of.
    """
    codes: defaultdict[Kernel, defaultdict[int, set[int]]] = defaultdict(lambda: defaultdict(set))
    for each in held:
        codes[_kernel(each)][each.code].add(each.rows)
    answered, windows = _answered(rules, codes), WINDOW_KERNEL in rules
    differences: list[Difference] = []
    points = 0
    for kernel in _kernels(codes, answered, windows=windows):
        by_device = answered.get(replace(kernel, dtype=_OPEN), {})
        anywhere = frozenset[int]().union(*by_device.values())
        alike = [each for each in codes if each.kernel == kernel.kernel]
        known = {code for each in alike for code in codes[each]}
        for sm in THIRD_DEVICES.get(kernel.kernel, SECOND_DEVICES):
            points += 1
            here = by_device.get(sm, frozenset())
            rows = frozenset(codes[kernel][_code(known, sm)]) if kernel in codes else frozenset()
            if here - rows or rows - anywhere:
                point = Point(**{name: getattr(kernel, name) for name in _FIELDS}, sm=sm)
                found = tuple(sorted(here)), tuple(sorted(rows))
                differences.append(Difference(point, *found, _why(kernel, windows=windows)))
    return Comparison(points, tuple(differences))


_FIELDS = Kernel.__struct_fields__


def _kernel(held: HeldKernel) -> Kernel:
    return Kernel(**{name: getattr(held, name) for name in _FIELDS})


def _why(kernel: Kernel, *, windows: bool) -> str | None:
    """Return what the rules do not speak of; None where they speak of the kernel."""
    reasons = (
        (kernel.value_dim != kernel.head_dim, WIDTHS),
        (kernel.mask == "window" and not windows, WINDOW),
        (kernel.dtype == "float8", ELEMENTS),
    )
    return "; ".join(text for there, text in reasons if there) or None


def _code(codes: Iterable[int], sm: int) -> int:
    """Return which code a device runs: the newest of its own generation, else of one before.

    The latter is compiled anew from what is stored beside it.
    """
    older = [code for code in codes if code <= sm]
    own = [code for code in older if code // 10 == sm // 10]
    return max(own or older, default=0)


def _kernels(codes: Iterable[Kernel], answered: _Answered, *, windows: bool) -> list[Kernel]:
    """Return what the binary holds, and what the rules answer for, in each type of 16 bits.

    Where no rule is of windows, a kernel for them is compared where there is one.
    """
    found = set(codes)
    types = defaultdict(set)
    for each in found:
        if each.dtype != "float8":
            types[each.kernel].add(each.dtype)
    for each in answered:
        if each.mask != "window" or windows:
            found |= {replace(each, dtype=dtype) for dtype in types[each.kernel]}
    return sorted(found, key=lambda each: [str(getattr(each, name)) for name in _FIELDS])


def _answered(rules: Rules, codes: Iterable[Kernel]) -> _Answered:
    """Return the rows that the rules answer; a head runs the narrowest kernel that it fits."""
    widths = defaultdict(set)
    for each in codes:
        if each.head_dim == each.value_dim:
            widths[each.kernel].add(each.head_dim)
    found: defaultdict[Kernel, defaultdict[int, set[int]]] = defaultdict(lambda: defaultdict(set))
    for one in answers(rules):
        fits = [width for width in widths[one.kernel] if width >= one.width]
        if fits:
            kernel = Kernel(
                kernel=one.kernel,
                head_dim=min(fits),
                value_dim=min(fits),
                dtype=_OPEN,
                mask=one.mask,
                split=one.split,
                paged=one.paged,
                pack=one.pack,
            )
            found[kernel][one.sm].add(one.rows)
    if not found:
        raise EvidenceError(
            "the rules speak of no kernel that the binary holds",
            remedy="Compare it with the rules of the same kernels",
        )
    return {
        kernel: {sm: frozenset(rows) for sm, rows in devices.items()}
        for kernel, devices in found.items()
    }
