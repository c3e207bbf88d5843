"""Which kernel vLLM runs for a dense product of quantised weights."""

import re

import pytest
from derive.questions import LOG
from nearfree.backends.dense_kernels import (
    CUTLASS,
    MACHETE,
    MARLIN,
    SELECTIONS,
    deepgemm_replacement,
    dense_format,
    dense_kernel,
    dense_rule,
    dense_widens,
)
from nearfree.backends.moe_kernels import Selection
from nearfree.errors import EvidenceError
from nearfree.sources.fetching.cache import Cache
from nearfree.sources.fetching.fetch import fetch
from nearfree.sources.record import recorded_extraction

SIDES = {"columns": 14336, "depth": 4096}
RELEASES_READ = ("0.9.1", "0.14.0", "0.19.0", "0.20.2", "0.22.0", "0.24.0", "0.33.0")


@pytest.mark.parametrize("version", RELEASES_READ)
def test_few_bits_run_machete_on_hopper_and_marlin_elsewhere(version: str) -> None:
    """On Hopper a file of AWQ's ran Marlin up to 0.14, which a question does not say."""
    for sm in (80, 86, 89, 100, 120):
        assert dense_kernel(version, "int4", sm, **SIDES) == MARLIN
    if version in ("0.9.1", "0.14.0"):
        with pytest.raises(EvidenceError, match="Marlin where the file is one of AWQ"):
            dense_kernel(version, "int4", 90, **SIDES)
    else:
        assert dense_kernel(version, "int4", 90, **SIDES) == MACHETE


def test_sides_that_a_kernel_does_not_take_go_to_the_next() -> None:
    """Machete takes multiples of 128 by 64; then Marlin did, and since 0.33 Humming does."""
    assert dense_kernel("0.24.0", "int4", 90, columns=4160, depth=4096) == MARLIN
    assert dense_kernel("0.33.0", "int4", 90, columns=4160, depth=4096) == "Humming"
    with pytest.raises(EvidenceError, match="no kernel that is read"):
        dense_kernel("0.24.0", "int4", 80, columns=4100, depth=4096)


def test_scaled_blocks_went_to_deepgemm_with_the_wheel_that_has_it() -> None:
    """CUTLASS up to 0.19, and after it where DeepGEMM does not take the weights' sides."""
    assert dense_kernel("0.19.0", "float8_block", 90, **SIDES) == CUTLASS
    assert "DeepGEMM" in dense_kernel("0.20.2", "float8_block", 90, **SIDES)
    assert dense_kernel("0.24.0", "float8_block", 90, columns=4128, depth=4096) == CUTLASS
    assert dense_kernel("0.24.0", "float8_block", 89, **SIDES) == "Triton"
    assert dense_kernel("0.33.0", "float8_block", 89, **SIDES) == MARLIN
    on_capability_12 = [
        dense_kernel(version, "float8_block", 120, **SIDES) for version in ("0.22.0", "0.24.0")
    ]
    assert on_capability_12 == [CUTLASS, "DeepGEMM"]


@pytest.mark.parametrize(
    ("version", "families"), [("0.19.0", ()), ("0.22.0", (100,)), ("0.24.0", (100, 120))]
)
def test_deepgemm_is_off_for_qwen3_5_on_blackwell(version: str, families: tuple[int, ...]) -> None:
    """There CUTLASS runs its scaled blocks; other models and GPUs keep what the release runs."""
    for sm in (90, 100, 103, 120, 121):
        runs = deepgemm_replacement(version, "qwen3_5_text", sm)
        assert runs == (CUTLASS if sm // 10 * 10 in families else None)
        assert deepgemm_replacement(version, "qwen3", sm) is None


@pytest.mark.parametrize(
    ("version", "format_", "widened"),
    [
        ("0.33.0", "float8_block", (80, 86, 89)),
        ("0.24.0", "float8_block", (80, 86)),
        ("0.33.0", "float8", (80, 86)),
        ("0.33.0", "nvfp4", (80, 86, 89)),
        ("0.24.0", "nvfp4", (80, 86, 89, 90)),
        ("0.33.0", "int8", ()),
        ("0.23.0", "float8", ()),
    ],
)
def test_marlin_takes_rows_of_16_bits(version: str, format_: str, widened: tuple[int, ...]) -> None:
    """Where it runs products in float8 or nvfp4, what enters is not rounded; elsewhere it is."""
    for sm in (80, 86, 89, 90, 100, 120):
        assert dense_widens(version, format_, format_, sm) == (sm in widened)
        assert not dense_widens(version, "bfloat16", format_, sm)
    format_of_weights = dense_format("bfloat16", format_)
    assert format_of_weights is not None
    for sm in widened:
        assert dense_kernel(version, format_of_weights, sm, **SIDES) == MARLIN
    if widened:
        with pytest.raises(EvidenceError, match=f"no kernel that is read for {format_of_weights}"):
            dense_kernel(version, format_of_weights, 100, **SIDES)


def test_an_undetermined_kernel_is_refused() -> None:
    """Whether scales are per tensor decides on Blackwell; the place that says so is named."""
    with pytest.raises(EvidenceError, match=r"FlashInfer where .*CUTLASS where not.*:458-467"):
        dense_kernel("0.33.0", "float8", 100, **SIDES)


def test_a_release_that_is_not_read_is_refused_with_those_that_are() -> None:
    """Nothing is taken from a neighbouring release."""
    with pytest.raises(EvidenceError, match=r"0\.23\.0 .*it is read for 0\.9\.1, .*0\.33\.0"):
        dense_kernel("0.23.0", "float8", 90, **SIDES)


def test_formats_are_those_of_products() -> None:
    """Weights that are unpacked to 16 bits are told from those multiplied as they are."""
    assert dense_format("int8", "int8") == "int8"
    assert dense_format("bfloat16", "int8") == "int8_w8a16"
    assert dense_format("bfloat16", "bfloat16") is None
    assert dense_format("float8", "int4") is None


def test_rules_that_kernels_go_by_are_on_record() -> None:
    """Every kernel whose rows are read has its rule at every release that runs it, no other has."""
    named_kernels = {MARLIN, MACHETE}
    for selection in SELECTIONS:
        for version in selection.lines:
            extraction = recorded_extraction(LOG, "vllm-linear", version)
            assert extraction is not None
            rules = extraction.meanings()
            for kernel in selection.kernels:
                for format_ in selection.dtypes:
                    for sm in (80, 89, 90, 100):
                        if not kernel.min_sm <= sm <= kernel.max_sm:
                            continue
                        rule = dense_rule(kernel.name, format_, sm)
                        assert (rule in rules) == (kernel.name in {*named_kernels, CUTLASS})
    assert dense_rule(CUTLASS, "int8", 86) is None
    assert dense_rule("DeepGEMM", "float8_block", 90) is None


PLACES = [(selection, release) for selection in SELECTIONS for release in selection.lines]
KERNEL_WORDS = {
    "float8": r"cutlass_fp8_supported|Cutlass\w*F[Pp]8",
    "float8_block": r"cutlass_block_fp8_supported|CutlassFp8Block|deepgemm",
    "int8": "CutlassScaledMM|CutlassInt8",
    "int4": r"MacheteLinearKernel[\s\S]*MarlinLinearKernel",
    "int8_w8a16": r"MacheteLinearKernel[\s\S]*MarlinLinearKernel",
    "nvfp4": r"is_fp4_marlin_supported|MarlinNvFp4LinearKernel",
}
"""What the place that chooses a format's kernel names."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("selection", "release"), PLACES, ids=lambda case: str(getattr(case, "dtypes", case))
)
def test_the_places_are_those_of_the_releases(
    selection: Selection, release: str, source_cache: Cache
) -> None:
    """At the stated lines of each release's own file kernels of the format are named."""
    source = fetch("vllm", release, re.escape(selection.file), cache=source_cache)
    first_line, last_line = selection.lines[release]
    lines = "\n".join(source.text(selection.file).splitlines()[first_line - 1 : last_line])
    for format_ in selection.dtypes:
        assert re.search(KERNEL_WORDS[format_], lines), (release, selection.file, lines)
