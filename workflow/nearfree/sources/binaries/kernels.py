"""Kernels of FlashAttention 2 and 3 in a binary: what the names of its device functions say.

The order of template parameters is the sources': `DEFINE_FLASH_FORWARD_KERNEL` of flash-attn
2.8.3 (csrc/flash_attn/src/flash_fwd_launch_template.h, lines 28 to 46) with `kernel_traits.h`
there (line 48), and hopper/mainloop_fwd_sm90_tma_gmma_ws.hpp (lines 31 to 33),
mainloop_fwd_sm80.hpp (26 to 28) and epilogue_fwd.hpp (23 and 24) at vLLM's commit 617264c1.
Backward passes, combining of splits, block-sparse attention and training's dropout are left out:
no rule speaks of them. Any other kernel of an unknown form is refused.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal, NamedTuple

from msgspec.structs import astuple, replace

from nearfree.errors import SourceError
from nearfree.log.events import HeldKernel
from nearfree.sources.binaries.mangled import Argument, Name, read_name

_ARCHITECTURE = re.compile(r"arch = sm_([0-9]{2,3})[af]?")
_FUNCTION = re.compile(r" Function ([A-Za-z0-9_$.]+):")
_USAGE = re.compile(r"  REG:([0-9]+) STACK:[0-9]+ SHARED:([0-9]+) .*")
_TYPES: dict[str, Literal["float16", "bfloat16", "float8"]] = {
    "half_t": "float16",
    "bfloat16_t": "bfloat16",
    "float_e4m3_t": "float8",
}
_FORWARD: dict[str, "_Second"] = {
    "flash_fwd_kernel": "standard",
    "flash_fwd_splitkv_kernel": "split_kv",
}
_UNRULED = {"flash_fwd_splitkv_combine_kernel", "flash_fwd_sparse_kernel"}
_THIRD: dict[str, Literal["fa3_sm80", "fa3_sm90"]] = {
    "FlashAttnFwdSm80": "fa3_sm80",
    "FlashAttnFwdSm90": "fa3_sm90",
}


class Function(NamedTuple):
    """A device function as the dumper lists it: registers a thread, static shared memory."""

    code: int
    """The architecture that it was compiled for, 90 for 9.0."""
    name: str
    registers: int
    shared_bytes: int


def functions(listing: str, code: int | None = None) -> list[Function]:
    """Return all device functions of a listing by `cuobjdump -res-usage`.

    Parameters
    ----------
    code
        The architecture of device code that stands alone, of which the listing does not say it.

    Raises
    ------
    SourceError
        The listing has another form, or names none.
    """
    found: list[Function] = []
    name = None
    for line in listing.splitlines():
        if name is not None:
            usage = _USAGE.fullmatch(line)
            if usage is None or code is None:
                raise SourceError(f"the dumper says nothing known of {name[:80]}: {line[:80]!r}")
            found.append(Function(code, name, int(usage[1]), int(usage[2])))
            name = None
        elif architecture := _ARCHITECTURE.fullmatch(line):
            code = int(architecture[1])
        elif function := _FUNCTION.fullmatch(line):
            name = function[1]
    if not found or name is not None:
        raise SourceError("the dumper lists no whole device function")
    return found


def held_kernels(found: Iterable[Function]) -> tuple[HeldKernel, ...]:
    """Return the attention kernels among device functions, those alike in what is read as one.

    Raises
    ------
    SourceError
        A kernel of FlashAttention has other template parameters than the known ones.
    """
    alike: defaultdict[HeldKernel, list[Function]] = defaultdict(list)
    for function in found:
        kernel = _kernel(function)
        if kernel is not None:
            alike[kernel].append(function)
    merged = (
        replace(
            kernel,
            kernels=len(each),
            registers=_ends(f.registers for f in each),
            shared_bytes=_ends(f.shared_bytes for f in each),
        )
        for kernel, each in alike.items()
    )
    return tuple(sorted(merged, key=lambda kernel: str(astuple(kernel))))


def _ends(numbers: Iterable[int]) -> tuple[int, int]:
    ordered = sorted(numbers)
    return ordered[0], ordered[-1]


def _kernel(function: Function) -> HeldKernel | None:
    """Return the kernel that a function is, without what it uses; None of other functions."""
    if not any(sign in function.name for sign in ("flash_fwd_", "FlashAttnFwdSm")):
        return None
    name = read_name(function.name)
    try:
        if name.last in _UNRULED:
            return None
        if name.last in _FORWARD:
            return _second(function.code, _FORWARD[name.last], name.args)
        return _third(function.code, _template(_template(name, 0), 0))
    except (IndexError, TypeError, ValueError, KeyError) as error:
        raise SourceError(
            f"{function.name[:200]} has other template parameters than the known"
        ) from error


_Second = Literal["standard", "split_kv"]


def _second(code: int, kernel: _Second, given: Sequence[Argument]) -> HeldKernel | None:
    traits, (first, second, third, *others) = _name(given[0]), _flags(given[1:], 8)
    if traits.last != "Flash_fwd_kernel_traits":
        raise TypeError(traits)
    splits = kernel == "split_kv"
    if first and not splits:
        return None  # dropout
    head_dim, rows, columns = _numbers(traits.args[:3])
    return HeldKernel(
        code=code,
        kernel=kernel,
        head_dim=head_dim,
        value_dim=head_dim,
        dtype=_TYPES[_name(traits.args[6]).last],
        mask=_mask(first, second) if splits else _mask(second, third),
        paged=None,
        split=splits and others[3],
        pack=None,
        rows=rows,
        columns=columns,
    )


def _third(code: int, kernel: Name) -> HeldKernel:
    loop, epilogue = _template(kernel, 0), _template(kernel, 1)
    # Of the main loop: stages and clusters, or warps, stages and where queries are kept.
    before = 2 if kernel.last == "FlashAttnFwdSm90" else 3
    tile, width, kind = loop.args[before : before + 3]
    rows, columns, head_dim = _numbers(_template(_name(tile), n).args[0] for n in range(3))
    causal, window, _, _, paged = _flags(loop.args[before + 5 : before + 10], 5)
    _, pack, split = _flags(epilogue.args[5:8], 3)
    (value_dim,) = _numbers([width])
    return HeldKernel(
        code=code,
        kernel=_THIRD[kernel.last],
        head_dim=head_dim,
        value_dim=value_dim,
        dtype=_TYPES[_name(kind).last],
        mask=_mask(causal, window),
        paged=paged,
        split=split,
        pack=pack,
        rows=rows,
        columns=columns,
    )


def _mask(causal: object, window: object) -> Literal["none", "causal", "window"]:
    return "window" if window else "causal" if causal else "none"


def _template(name: Name, place: int) -> Name:
    return _name(name.args[place])


def _name(argument: Argument) -> Name:
    if not isinstance(argument, Name):
        raise TypeError(argument)
    return argument


def _numbers(given: Iterable[Argument]) -> Iterator[int]:
    for each in given:
        if isinstance(each, bool) or not isinstance(each, int):
            raise TypeError(each)
        yield each


def _flags(given: Sequence[Argument], count: int) -> list[bool]:
    found = [each for each in given if isinstance(each, bool)]
    if len(found) != count or len(given) != count:
        raise TypeError(given)
    return found
