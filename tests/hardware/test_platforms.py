"""Datasheets: the shipped facts, their sources, and names that resolve."""

import re
from pathlib import Path

import pytest
from nearfree.config.files import Config
from nearfree.core.precision import FORMATS
from nearfree.errors import ConfigError
from nearfree.hardware.occupancy import shared_memory
from nearfree.hardware.platforms import (
    PCIE_GPUS,
    Platform,
    check_platforms,
    resolve,
)

FILE = Path("mine/platforms.yaml")
PLATFORMS = Config(Path(__file__).parents[2] / "config").platforms
META = {"kind", "vendor_name", "aliases", "sources", "unknown"}
FACTS = [name for name in Platform.__struct_fields__ if name not in META]
SAMPLE = {
    "device_name": "NVIDIA H20",
    "year": 2024, "architecture": "Hopper", "sm": 90, "sm_count": 78, "boost_clock_mhz": 1980.0,
    "peak_tflops": {"bfloat16": 148.0}, "bandwidth_gb_s": 4000.0, "l2_mib": 60.0,
    "shared_memory_per_sm_kib": 228.0, "shared_memory_per_block_kib": 227.0, "memory_gb": 96.0,
    "nvlink": 4, "nvlink_gb_s": 1.0, "pcie_gb_s": 1.0, "node_gpus": 8, "machine_gpus": 4,
    "direct_gpus": 2, "host_cpu": "grace", "network_gb_s": 1.0,
}  # fmt: skip


@pytest.mark.parametrize(("name", "balance"), [("h20", 37.0), ("a800", 153.0), ("h800", 295.2)])
def test_the_balance_points_of_the_paper(name: str, balance: float) -> None:
    """Rho = phi / beta of the paper's platforms is what its table of hardware prints."""
    rho = PLATFORMS[name].balance("bfloat16")
    assert rho is not None
    assert round(rho, 1) == balance


@pytest.mark.parametrize("name", PLATFORMS)
def test_every_shipped_fact_has_a_source(name: str) -> None:
    """Each fact of a shipped datasheet names its document, and no source stands without a fact."""
    platform = PLATFORMS[name]
    given = {fact for fact in FACTS if getattr(platform, fact)}
    assert given <= set(platform.sources)
    for source in platform.sources:
        fact, _, dtype = source.partition(".")
        assert fact in given
        assert not dtype or dtype in platform.peak_tflops


@pytest.mark.parametrize("name", [name for name, p in PLATFORMS.items() if p.kind == "cuda"])
def test_a_gpu_has_what_the_law_needs(name: str) -> None:
    """Every shipped GPU has a balance point for bfloat16, or says that its facts are unknown."""
    platform = PLATFORMS[name]
    assert platform.balance("bfloat16") or any("peak_tflops" in u for u in platform.unknown)


@pytest.mark.parametrize("name", PLATFORMS)
def test_what_is_unknown_is_left_out(name: str) -> None:
    """A fact that is listed as unknown is not given as well."""
    for unknown in PLATFORMS[name].unknown:
        fact, _, dtype = unknown.partition(".")
        value = getattr(PLATFORMS[name], fact)
        assert not (value.get(dtype) if dtype else value)


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("A100", "a100"),
        ("RTX 4090", "rtx_4090"),
        ("NVIDIA H200", "h200"),
        ("H100-PCIe", "h100_pcie"),
    ],
)
def test_case_and_spaces_do_not_matter(written: str, name: str) -> None:
    """A GPU's name matches whatever its case and spaces."""
    assert resolve(PLATFORMS, written) == name


def test_an_unknown_name_gets_the_nearest_first() -> None:
    """A mistyped name is refused with the nearest names first, then the full list."""
    with pytest.raises(ConfigError, match="'a100-60gb'") as caught:
        resolve(PLATFORMS, "a100-60gb")
    assert caught.value.remedy is not None
    assert caught.value.remedy.startswith("Nearest are a100")
    with pytest.raises(ConfigError, match="unknown platform"):
        resolve(PLATFORMS, "../h100")
    with pytest.raises(ConfigError) as far:
        resolve(PLATFORMS, "mars")
    assert far.value.remedy is not None
    assert far.value.remedy.startswith("Choose one of ")


def test_an_alias_resolves() -> None:
    """A platform is found by its name and by each of its aliases."""
    assert resolve(PLATFORMS, "a100_sxm") == "a100"
    assert resolve(PLATFORMS, "h20") == "h20"
    for name, platform in PLATFORMS.items():
        assert {resolve(PLATFORMS, alias) for alias in platform.aliases} <= {name}


@pytest.mark.parametrize(
    ("system", "name"),
    [
        ("a100_sxm", "a100"), ("h100_sxm", "h100"), ("h200_sxm", "h200"), ("l40s", "l40s"),
        ("b200_sxm", "b200"), ("b300_sxm", "b300"), ("gb200", "gb200"), ("gb300", "gb300"),
        ("rtx_pro_6000_server", "rtx_pro_6000"),
    ],
)  # fmt: skip
def test_the_systems_of_aiconfigurator_are_known(system: str, name: str) -> None:
    """Each NVIDIA system with curves is a platform, with all that a count of waves needs."""
    assert resolve(PLATFORMS, system) == name
    platform = PLATFORMS[name]
    assert platform.sm
    assert platform.sm_count
    assert platform.balance("bfloat16")


@pytest.mark.parametrize("name", [name for name, p in PLATFORMS.items() if p.sm])
def test_shared_memory_is_that_of_the_compute_capability(name: str) -> None:
    """A datasheet's shared memory is what kernels are told of its compute capability."""
    platform = PLATFORMS[name]
    assert platform.sm is not None
    known = shared_memory(platform.sm)
    assert platform.shared_memory_per_sm_kib == known.per_sm / 1024
    assert platform.shared_memory_per_block_kib == known.per_block / 1024


@pytest.mark.parametrize("name", [name for name, p in PLATFORMS.items() if p.device_name])
def test_a_device_name_resolves(name: str) -> None:
    """A GPU is found by what its driver calls it, with and without the vendor."""
    device = re.sub(r"[^a-z0-9]+", "_", (PLATFORMS[name].device_name or "").lower())
    assert resolve(PLATFORMS, device) == name
    assert resolve(PLATFORMS, device.removeprefix("nvidia_")) == name


def test_an_unknown_name_is_refused() -> None:
    """A name that means no platform is refused, with those that there are."""
    with pytest.raises(ConfigError, match="unknown platform 'mars'") as caught:
        resolve(PLATFORMS, "mars")
    assert "h20" in caught.value.remedy


def test_gpus_meet_over_nvlink_or_pcie() -> None:
    """What a GPU sends to its node is NVLink's bandwidth, else PCIe's, else not known.

    Over PCIe two are taken to reach each other where nobody says how many; over NVLink all do.
    """
    assert PLATFORMS["h100"].link_gb_s == PLATFORMS["h100"].nvlink_gb_s == 450
    assert PLATFORMS["l40s"].link_gb_s == PLATFORMS["l40s"].pcie_gb_s == 32
    assert PLATFORMS["cpu"].link_gb_s is None
    direct = {name: PLATFORMS[name].direct for name in ("h100", "l40s", "rtx_pro_6000", "l4")}
    assert direct == {"h100": None, "l40s": 2, "rtx_pro_6000": 8, "l4": 2}
    assert PLATFORMS["l4"].direct_gpus is None
    for platform in PLATFORMS.values():
        assert (platform.nvlink is None) == (platform.nvlink_gb_s is None)
        assert (platform.machine_gpus or 0) <= (platform.node_gpus or 0)
        assert (platform.direct_gpus or 0) <= (platform.node_gpus or 0)


def test_a_machine_of_any_number_of_gpus_is_taken_to_hold_eight() -> None:
    """Over PCIe, where no product says how many.

    Over NVLink, beside a CPU of its own, or without any link, none is said.
    """
    assert PLATFORMS["l40s"].joined_gpus == PLATFORMS["l40s"].node_gpus
    assert PLATFORMS["rtx_4090"].node_gpus is None
    assert PLATFORMS["rtx_4090"].joined_gpus == PCIE_GPUS
    assert Platform(kind="cuda", nvlink=4, nvlink_gb_s=450, pcie_gb_s=64).joined_gpus is None
    assert Platform(kind="cuda").joined_gpus is None
    assert PLATFORMS["gh200"].joined_gpus is None


def test_the_balance_point_needs_both_facts() -> None:
    """Without phi of the dtype or without beta there is no balance point."""
    assert PLATFORMS["h20"].balance("float4") is None
    assert Platform(kind="cuda", peak_tflops={"bfloat16": 1.0}).balance("bfloat16") is None


def test_the_sample_has_every_fact() -> None:
    """The facts that the next test covers are all that a datasheet may hold."""
    assert set(SAMPLE) == set(FACTS)


@pytest.mark.parametrize("fact", SAMPLE)
def test_a_fact_without_a_source_is_refused(fact: str) -> None:
    """Any fact of a datasheet without its document is refused by name."""
    platform = Platform(kind="cuda", **{fact: SAMPLE[fact]})  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=rf"^mine/platforms.yaml: x9\.{fact} has no source"):
        check_platforms({"x9": platform}, FILE)
    sourced = Platform(kind="cuda", sources={fact: "a"}, **{fact: SAMPLE[fact]})  # type: ignore[arg-type]
    check_platforms({"x9": sourced}, FILE)


@pytest.mark.parametrize(
    "clash", [{"b": ("a",)}, {"a": ("c",), "b": ("c",)}, {"a": ("b",), "b": ()}, {"a": ("a",)}]
)
def test_a_shared_name_is_refused(clash: dict[str, tuple[str, ...]]) -> None:
    """Two platforms that answer to the same name are refused."""
    known = {"a": (), **clash}
    platforms = {name: Platform(kind="cuda", aliases=aliases) for name, aliases in known.items()}
    with pytest.raises(ConfigError, match=r"^mine/platforms\.yaml: .* share the name"):
        check_platforms(platforms, FILE)


LACKING = {
    "Ampere": {"float8", "float4"},
    "Ada Lovelace": {"float4"},
    "Hopper": {"int4", "float4"},
    "Blackwell": {"int4"},
    "Blackwell Ultra": {"int4"},
    "CDNA 3": {"int4", "float4"},
    "CDNA 4": {"int4"},
}
"""The peaks of formats that an architecture's tensor cores have no products in."""


@pytest.mark.parametrize("name", [name for name, p in PLATFORMS.items() if p.kind != "cpu"])
def test_every_format_that_a_gpu_has_products_in_has_a_peak(name: str) -> None:
    """A datasheet has the peaks of its architecture's formats, but those said to be unknown."""
    platform = PLATFORMS[name]
    unknown = {fact.partition(".")[2] for fact in platform.unknown}
    peaks = {format_.peak for format_ in FORMATS.values()}
    assert set(platform.peak_tflops) == peaks - LACKING[platform.architecture or ""] - unknown


def test_a_format_has_the_peak_of_its_products() -> None:
    """FP8 in blocks multiplies as FP8, NVFP4 and MXFP4 as FP4; a peak's own name is one, too."""
    sheet = PLATFORMS["b200"]
    assert sheet.peak("float8_block") == sheet.peak("float8") == sheet.peak_tflops["float8"]
    assert sheet.peak("nvfp4") == sheet.peak("mxfp4") == sheet.peak("float4") == 9000
    assert sheet.balance("nvfp4") == 9000 * 1000 / 7700
    assert PLATFORMS["h100"].balance("nvfp4") is None


@pytest.mark.parametrize("name", [name for name, p in PLATFORMS.items() if p.kind == "rocm"])
def test_an_amd_gpu_has_no_compute_capability(name: str) -> None:
    """An AMD GPU has no compute capability, which every backend's rule needs."""
    assert PLATFORMS[name].sm is None
    assert PLATFORMS[name].balance("bfloat16")
