"""Kernels read from a listing and its names, and what is left out or refused."""

from pathlib import Path

import pytest
from nearfree.errors import SourceError
from nearfree.sources.binaries.kernels import Function, functions, held_kernels

TRAITS = (
    "23Flash_fwd_kernel_traitsILi128ELi{rows}ELi64ELi4ELb0ELb0EN7cutlass10bfloat16_tE"
    "19Flash_kernel_traitsILi128ELi{rows}ELi64ELi4ES3_EE"
)
LISTING = """
Fatbin elf code:
================
arch = sm_{code}
code version = [1,8]

Resource usage:
 Common:
  GLOBAL:0
 Function {name}:
  REG:{registers} STACK:0 SHARED:1024 LOCAL:0 CONSTANT[0]:776 TEXTURE:0 SURFACE:0 SAMPLER:0
"""


def second(rows: int, *, kernel: str = "16flash_fwd_kernel", flags: str = "00000000") -> str:
    """Return the mangled name of a kernel of FlashAttention 2."""
    given = "".join(f"Lb{flag}E" for flag in flags)
    return f"_ZN5flash{kernel}I{TRAITS.format(rows=rows)}{given}EEvNS_16Flash_fwd_paramsE"


def third() -> str:
    """Return the name of the kernel of FlashAttention 3 for Hopper of our own library."""
    text = (Path(__file__).parent / "hopper.ptx").read_text()
    return text.partition(".entry ")[2].partition("(")[0]


def listed(name: str, code: str = "90a", registers: int = 168) -> str:
    """Return the listing of one function."""
    return LISTING.format(code=code, name=name, registers=registers)


def test_a_listing_names_functions_with_what_they_use() -> None:
    """Each function has the architecture above it, its registers and its shared memory."""
    text = listed("one") + listed("two", "120f", 40)
    assert functions(text) == [
        Function(90, "one", 168, 1024),
        Function(120, "two", 40, 1024),
    ]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "hello",
        listed("one").replace("REG:168", "REG:many"),
        listed("one").partition("  REG")[0],
    ],
)
def test_other_listings_are_refused(text: str) -> None:
    """A listing without functions, or without a function's use, is refused."""
    with pytest.raises(SourceError, match="the dumper"):
        functions(text)


def test_kernels_of_flash_attention_2() -> None:
    """Traits give widths and tile, flags mask and splits; equal functions are one kernel."""
    held = held_kernels(
        [
            Function(80, second(128), 200, 0),
            Function(80, second(128, flags="00001100"), 255, 16),
            Function(80, second(64, flags="01000000"), 90, 0),
            Function(90, second(64, kernel="24flash_fwd_splitkv_kernel", flags="10000010"), 90, 0),
        ]
    )
    causal, both, split = held
    assert (both.kernel, both.mask, both.rows, both.columns) == ("standard", "none", 128, 64)
    assert (both.kernels, both.registers, both.shared_bytes) == (2, (200, 255), (0, 16))
    assert (causal.mask, causal.rows, causal.dtype, causal.head_dim) == (
        *("causal", 64),
        *("bfloat16", 128),
    )
    assert (split.code, split.kernel, split.mask, split.split) == (90, "split_kv", "causal", True)


def test_kernels_of_flash_attention_3() -> None:
    """The main loop gives tile and masks, the epilogue packing and splits."""
    (held,) = held_kernels([Function(90, third(), 168, 1024)])
    assert (held.kernel, held.head_dim, held.value_dim) == ("fa3_sm90", 128, 128)
    assert (held.rows, held.columns, held.mask) == (128, 160, "none")
    assert (held.paged, held.split, held.pack) == (False, False, True)


def test_what_no_rule_speaks_of_is_left_out() -> None:
    """Other functions, dropout and the combination of splits are left out."""
    others = [second(128, flags="10000000"), "_Z6kerneli", "main"]
    combining = second(4, kernel="32flash_fwd_splitkv_combine_kernel")
    assert held_kernels(Function(80, name, 1, 0) for name in [*others, combining]) == ()


@pytest.mark.parametrize(
    "name",
    [
        second(128, flags="0000000"),
        second(128, flags="000000000"),
        second(128).replace("Li64E", "Lb1E"),
        second(128).replace("10bfloat16_t", "10bfloat32_t"),
        second(128, kernel="20flash_fwd_new_kernel"),
        third().replace("Lb1ELb1ELb0ELb0ELi1E", "Lb1ELi1ELb0ELb0ELi1E"),
        third().replace("16FlashAttnFwdSm90", "16FlashAttnFwdSm99"),
    ],
)
def test_kernels_of_another_form_are_refused(name: str) -> None:
    """A kernel with other template parameters is refused."""
    assert name not in {second(128), third()}
    with pytest.raises(SourceError, match="unknown template parameters"):
        held_kernels([Function(80, name, 1, 0)])
