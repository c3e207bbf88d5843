"""FlashAttention 2 and 3 kernels in a binary, read from the names of its device functions.

The order of template parameters is the sources': `DEFINE_FLASH_FORWARD_KERNEL` of flash-attn 2.8.3
(csrc/flash_attn/src/flash_fwd_launch_template.h, lines 28 to 46) with `kernel_traits.h` there (line
48), and hopper/mainloop_fwd_sm90_tma_gmma_ws.hpp (lines 31 to 33), mainloop_fwd_sm80.hpp (26 to 28)
and epilogue_fwd.hpp (23 and 24) at vLLM's commit 617264c1. Backward passes, combining of splits,
block-sparse attention and training's dropout are left out: no rule covers them. Any other kernel of
an unknown form is refused.
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
_DTYPES: dict[str, Literal["float16", "bfloat16", "float8"]] = {
    "half_t": "float16",
    "bfloat16_t": "bfloat16",
    "float_e4m3_t": "float8",
}
_FA2_KERNELS: dict[str, "_Fa2Kernel"] = {
    "flash_fwd_kernel": "standard",
    "flash_fwd_splitkv_kernel": "split_kv",
}
_KERNELS_WITHOUT_RULES = {"flash_fwd_splitkv_combine_kernel", "flash_fwd_sparse_kernel"}
_FA3_KERNELS: dict[str, Literal["fa3_sm80", "fa3_sm90"]] = {
    "FlashAttnFwdSm80": "fa3_sm80",
    "FlashAttnFwdSm90": "fa3_sm90",
}


class Function(NamedTuple):
    """A device function as the dumper lists it: registers per thread, static shared memory."""

    code: int
    """The architecture that it was compiled for, 90 for 9.0."""
    name: str
    registers: int
    shared_bytes: int


def functions(listing: str, code: int | None = None) -> list[Function]:
    """Return all device functions of a listing by `cuobjdump -res-usage`.

    `code` is the architecture of standalone device code, whose listing does not name it.

    Raises
    ------
    SourceError
        The listing has another form, or names no function.
    """
    listed: list[Function] = []
    function_name = None
    for line in listing.splitlines():
        if function_name is not None:
            usage = _USAGE.fullmatch(line)
            if usage is None or code is None:
                raise SourceError(
                    f"the dumper's line on {function_name[:80]} has an unknown form: {line[:80]!r}"
                )
            listed.append(Function(code, function_name, int(usage[1]), int(usage[2])))
            function_name = None
        elif architecture := _ARCHITECTURE.fullmatch(line):
            code = int(architecture[1])
        elif match := _FUNCTION.fullmatch(line):
            function_name = match[1]
    if not listed or function_name is not None:
        raise SourceError("the dumper lists no complete device function")
    return listed


def held_kernels(device_functions: Iterable[Function]) -> tuple[HeldKernel, ...]:
    """Return the attention kernels among device functions; equal kernels are merged.

    Raises
    ------
    SourceError
        A kernel of FlashAttention has unknown template parameters.
    """
    functions_of: defaultdict[HeldKernel, list[Function]] = defaultdict(list)
    for function in device_functions:
        kernel = _kernel(function)
        if kernel is not None:
            functions_of[kernel].append(function)
    merged = (
        replace(
            kernel,
            kernels=len(functions),
            registers=_minimum_and_maximum(function.registers for function in functions),
            shared_bytes=_minimum_and_maximum(function.shared_bytes for function in functions),
        )
        for kernel, functions in functions_of.items()
    )
    return tuple(sorted(merged, key=lambda kernel: str(astuple(kernel))))


def _minimum_and_maximum(numbers: Iterable[int]) -> tuple[int, int]:
    ordered = sorted(numbers)
    return ordered[0], ordered[-1]


def _kernel(function: Function) -> HeldKernel | None:
    """Return a function's attention kernel, without its resources; None for other functions."""
    if not any(sign in function.name for sign in ("flash_fwd_", "FlashAttnFwdSm")):
        return None
    name = read_name(function.name)
    try:
        if name.last in _KERNELS_WITHOUT_RULES:
            return None
        if name.last in _FA2_KERNELS:
            return _fa2_kernel(function.code, _FA2_KERNELS[name.last], name.args)
        return _fa3_kernel(function.code, _template(_template(name, 0), 0))
    except (IndexError, TypeError, ValueError, KeyError) as error:
        raise SourceError(f"{function.name[:200]} has unknown template parameters") from error


_Fa2Kernel = Literal["standard", "split_kv"]


def _fa2_kernel(code: int, kernel: _Fa2Kernel, arguments: Sequence[Argument]) -> HeldKernel | None:
    traits, (flag_0, flag_1, flag_2, *other_flags) = _name(arguments[0]), _flags(arguments[1:], 8)
    if traits.last != "Flash_fwd_kernel_traits":
        raise TypeError(traits)
    split_kv = kernel == "split_kv"
    if flag_0 and not split_kv:
        return None  # dropout
    head_dim, rows, columns = _integers(traits.args[:3])
    return HeldKernel(
        code=code,
        kernel=kernel,
        head_dim=head_dim,
        value_dim=head_dim,
        dtype=_DTYPES[_name(traits.args[6]).last],
        mask=_mask(flag_0, flag_1) if split_kv else _mask(flag_1, flag_2),
        paged=None,
        split=split_kv and other_flags[3],
        pack=None,
        rows=rows,
        columns=columns,
    )


def _fa3_kernel(code: int, kernel: Name) -> HeldKernel:
    mainloop, epilogue = _template(kernel, 0), _template(kernel, 1)
    # The main loop's leading arguments: stages and clusters, or warps, stages and where Q is kept.
    tile_index = 2 if kernel.last == "FlashAttnFwdSm90" else 3
    tile, value_width, dtype = mainloop.args[tile_index : tile_index + 3]
    rows, columns, head_dim = _integers(_template(_name(tile), n).args[0] for n in range(3))
    causal, window, _, _, paged = _flags(mainloop.args[tile_index + 5 : tile_index + 10], 5)
    _, pack, split = _flags(epilogue.args[5:8], 3)
    (value_dim,) = _integers([value_width])
    return HeldKernel(
        code=code,
        kernel=_FA3_KERNELS[kernel.last],
        head_dim=head_dim,
        value_dim=value_dim,
        dtype=_DTYPES[_name(dtype).last],
        mask=_mask(causal, window),
        paged=paged,
        split=split,
        pack=pack,
        rows=rows,
        columns=columns,
    )


def _mask(causal: object, window: object) -> Literal["none", "causal", "window"]:
    return "window" if window else "causal" if causal else "none"


def _template(name: Name, index: int) -> Name:
    return _name(name.args[index])


def _name(argument: Argument) -> Name:
    if not isinstance(argument, Name):
        raise TypeError(argument)
    return argument


def _integers(arguments: Iterable[Argument]) -> Iterator[int]:
    for argument in arguments:
        if isinstance(argument, bool) or not isinstance(argument, int):
            raise TypeError(argument)
        yield argument


def _flags(arguments: Sequence[Argument], count: int) -> list[bool]:
    flags = [argument for argument in arguments if isinstance(argument, bool)]
    if len(flags) != count or len(arguments) != count:
        raise TypeError(arguments)
    return flags
