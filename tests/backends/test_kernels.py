"""Kernels of MoE layers: which one is run, and what stands at the places that say so."""

import re

import pytest
from nearfree.backends.kernels import SELECTIONS, moe_kernel, unread_kernel_error
from nearfree.backends.moe_kernels import FALLBACKS, Selection
from nearfree.errors import EvidenceError
from nearfree.sources.fetching.cache import Cache
from nearfree.sources.fetching.fetch import fetch
from nearfree.sources.packages import RULES

KERNEL_WORDS = (
    r"(?i)marlin|triton|cutlass|WNA16Mo|int8mo|fused_experts|fp8mo|trtllm|flashinfer_mxfp4"
)
"""Names in the source where a kernel is chosen."""


@pytest.mark.parametrize(
    ("version", "dtype", "sm", "kernel"),
    [
        ("0.9.1", "fp8_block", 90, "Triton"),
        ("0.9.1", "fp8_block", 86, "Marlin"),
        ("0.20.2", "fp8_block", 89, "Triton"),
        ("0.20.2", "fp8_block", 103, "FlashInfer's TRTLLM"),
        ("0.22.0", "fp8_block", 120, "Triton"),
        ("0.24.0", "fp8_block", 120, "DeepGEMM"),
        ("0.24.0", "int4", 90, "Marlin"),
        ("0.33.0", "int4", 90, "Humming"),
        ("0.33.0", "int8", 90, "Triton"),
        ("0.33.0", "mxfp4", 80, "Marlin"),
        ("0.33.0", "mxfp4", 103, "FlashInfer's TRTLLM"),
        ("0.20.2", "mxfp4", 120, "Marlin"),
        ("0.24.0", "mxfp4", 121, "Marlin"),
        ("0.24.0", "nvfp4", 90, "Marlin"),
        ("0.33.0", "nvfp4", 90, "Humming"),
        ("0.33.0", "nvfp4", 120, "FlashInfer's CUTLASS"),
        ("0.12.0", "bf16", 90, "Triton"),
    ],
)
def test_a_release_chooses_by_format_and_device(
    version: str, dtype: str, sm: int, kernel: str
) -> None:
    """What vLLM runs differs between formats, devices and releases; 16 bits are asked of Triton."""
    assert moe_kernel("vllm", version, dtype, sm) == kernel


def test_a_release_is_not_taken_for_its_neighbour() -> None:
    """What was read of two releases says nothing of one between them."""
    with pytest.raises(EvidenceError, match=r"vllm 0.23.0 .* is not read; it is read for .*0.24.0"):
        moe_kernel("vllm", "0.23.0", "fp8", 89)


def test_a_refusal_names_the_kernels_and_what_works() -> None:
    """Of 4-bit floats: the kernels that run, where they are chosen, and where blocks are read."""
    with pytest.raises(EvidenceError) as error:
        moe_kernel("vllm", "0.33.0", "mxfp4", 90)
    message = str(error.value)
    assert "triton_kernels where the model is gpt-oss; Humming where it is not" in message
    assert "oracle/mxfp4.py:402-462" in message
    assert "Marlin, whose blocks are, runs on 80 to 89, 120 to 129" in message
    with pytest.raises(EvidenceError, match=r"CuteDSL or CUTLASS.*Marlin, .*runs on 80 to 99"):
        moe_kernel("vllm", "0.24.0", "nvfp4", 100)
    with pytest.raises(EvidenceError, match="runs no kernel that is read for nvfp4 on"):
        moe_kernel("sglang", "0.5.10", "nvfp4", 90)
    with pytest.raises(EvidenceError, match=r"it is read for 0\.5\.9, 0\.5\.10"):
        moe_kernel("sglang", "0.5.8", "nvfp4", 100)


@pytest.mark.parametrize(
    "selection", SELECTIONS, ids=lambda selection: f"{selection.package}-{selection.dtypes}"
)
def test_each_stated_kernel_has_a_refusal(selection: Selection) -> None:
    """Whatever format and release: it names the kernel, the place and a device or what to ask."""
    for release, (first_line, last_line) in selection.lines.items():
        for dtype in selection.dtypes:
            for kernel in {kernel_.name for kernel_ in selection.kernels}:
                message = str(unread_kernel_error(selection.package, release, dtype, 100, kernel))
                assert f"{selection.package} {release} runs {kernel} for " in message
                assert (
                    f"({selection.file}:{first_line}-{last_line}), whose blocks are not read; "
                    in message
                )


def test_each_release_and_format_is_stated_once() -> None:
    """Two statements about one format of a release would hide each other."""
    statements = [
        (selection.package, release, dtype)
        for selection in SELECTIONS
        for release in selection.lines
        for dtype in selection.dtypes
    ]
    assert len(statements) == len({*statements})
    assert {package for package, *_ in statements} <= RULES.keys()


@pytest.mark.parametrize(
    "selection", SELECTIONS, ids=lambda selection: f"{selection.package}-{selection.dtypes}"
)
def test_several_kernels_on_a_device_have_conditions(selection: Selection) -> None:
    """Where two could run each names its case: one without would be taken for the only one."""
    for sm in (80, 86, 89, 90, 100, 103, 110, 120):
        kernels = [kernel for kernel in selection.kernels if kernel.min_sm <= sm <= kernel.max_sm]
        assert len(kernels) < 2 or all(kernel.condition for kernel in kernels)


@pytest.mark.parametrize(
    "selection", SELECTIONS, ids=lambda selection: f"{selection.package}-{selection.dtypes}"
)
def test_kernels_of_single_models_name_their_models(selection: Selection) -> None:
    """They come before all others, so that one without a case would hide them."""
    assert all(kernel.condition not in FALLBACKS for kernel in selection.for_models)


@pytest.mark.parametrize("version", ["0.5.14", "0.5.23"])
def test_sglang_runs_nvfp4_by_marlin_where_no_units_are(version: str) -> None:
    """Below 10.0 it unpacks weights, and on 12.0 FlashInfer's CUTLASS runs, file or none."""
    assert {moe_kernel("sglang", version, "nvfp4", sm) for sm in (80, 89, 90)} == {"Marlin"}
    assert moe_kernel("sglang", version, "nvfp4", 120) == "FlashInfer's CUTLASS"


@pytest.mark.slow
@pytest.mark.parametrize(
    "selection", SELECTIONS, ids=lambda selection: f"{selection.package}-{selection.dtypes}"
)
def test_the_places_are_those_of_the_releases(selection: Selection, source_cache: Cache) -> None:
    """At the stated lines of each release's own file a kernel is chosen."""
    for release, (first_line, last_line) in selection.lines.items():
        source = fetch(selection.package, release, re.escape(selection.file), cache=source_cache)
        lines = source.text(selection.file).splitlines()
        assert re.search(KERNEL_WORDS, "\n".join(lines[first_line - 1 : last_line])), (
            release,
            selection.file,
        )
        assert (
            lines[first_line - 1]
            .lstrip()
            .startswith(("def ", "if ", "elif ", "return", "self.", "use_"))
        )
