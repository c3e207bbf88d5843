"""Table `platforms`: phi, beta and rho, datasheet and probed side by side."""

from collections.abc import Iterator

import msgspec
import polars as pl

from nearfree.derive.tables.columns import amount, count, text
from nearfree.derive.tables.schema import Table
from nearfree.hardware.platforms import Platform
from nearfree.log.events import HardwareProbed
from nearfree.log.evidence import Take
from nearfree.log.line import sha256
from nearfree.units import GFLOP_PER_TFLOP, balance_flop_per_byte

_FACTS = ("bandwidth_gb_s", "vendor_name", "year", "architecture", "sm_count", "l2_mib",
          "memory_gb")  # fmt: skip
PLATFORMS = Table(
    name="platforms",
    row="a platform's facts for one dtype, from one basis",
    key=("platform", "basis", "dtype", "take"),
    formula="rho = phi / beta, each as a datasheet says it or a probe timed it",
    paper="sec. 2.3",
    code="nearfree.derive.tables.platforms",
    body={
        "platform": text("the kind of machine"),
        "basis": text(
            "datasheet, or probed with beta by streaming or by a product's weight traffic",
            one_of=("datasheet", "probed_stream", "probed_gemm"),
        ),
        "dtype": text("element type"),
        "take": count("which probe, 0 for a datasheet", at_least=0),
        "peak_tflops": amount("phi"),
        "bandwidth_gb_s": amount("beta"),
        "balance_flop_per_byte": amount("rho = phi / beta"),
        "vendor_name": text("the vendor's name, or what the machine calls itself", nullable=True),
        "year": count("release year", nullable=True),
        "architecture": text("GPU architecture", nullable=True),
        "sm_count": count("streaming multiprocessors, or CPU cores", nullable=True),
        "l2_mib": amount("L2 of a GPU, last level of a CPU", nullable=True),
        "memory_gb": amount("device memory", nullable=True),
        "source": text("the document, or the probe's event"),
    },
)


def config_id(name: str, platform: Platform) -> str:
    """Return the id of a platform's entry in config/platforms.yaml, for `from_ids`."""
    digest = sha256(msgspec.json.encode(platform, order="deterministic"))
    return f"config/platforms.yaml:{name}@{digest[:12]}"


def platform_rows(
    platforms: dict[str, Platform], takes: list[Take], scope: str
) -> Iterator[dict[str, object]]:
    """Yield the rows of datasheets and of probes."""
    for name, platform in platforms.items():
        yield from _datasheet(name, platform)
    for take in takes:
        for event in take.events_of(HardwareProbed):
            yield from _probed(scope, take.name.take, event.data, event.event_id)


def _datasheet(name: str, platform: Platform) -> Iterator[dict[str, object]]:
    for dtype, peak in platform.peak_tflops.items():
        balance = platform.balance(dtype)
        if balance is not None:
            yield {
                "platform": name,
                "basis": "datasheet",
                "dtype": dtype,
                "take": 0,
                "peak_tflops": peak,
                "balance_flop_per_byte": balance,
                **{fact: getattr(platform, fact) for fact in _FACTS},
                "source": platform.sources.get(
                    f"peak_tflops.{dtype}", platform.sources.get("peak_tflops", "")
                ),
                "from_ids": [config_id(name, platform)],
            }


def _probed(
    scope: str, take: int, probe: HardwareProbed, event_id: str
) -> Iterator[dict[str, object]]:
    for compute in probe.compute:
        for bandwidth in probe.bandwidth:
            peak = compute.gflop_s / GFLOP_PER_TFLOP
            yield {
                "platform": scope,
                "basis": f"probed_{bandwidth.method}",
                "dtype": compute.dtype,
                "take": take,
                "peak_tflops": peak,
                "bandwidth_gb_s": bandwidth.gb_s,
                "balance_flop_per_byte": balance_flop_per_byte(peak, bandwidth.gb_s),
                "vendor_name": probe.fingerprint.model,
                "sm_count": probe.fingerprint.cores,
                "l2_mib": max(probe.fingerprint.caches.values(), default=0) / 1024**2 or None,
                **dict.fromkeys(("year", "architecture", "memory_gb")),
                "source": event_id,
                "from_ids": [event_id],
            }


def newest_balances(platforms: pl.DataFrame) -> pl.DataFrame:
    """Return one row per platform, basis and dtype: the datasheet's, or the newest probe's."""
    return platforms.sort("take").unique(
        ["platform", "basis", "dtype"], keep="last", maintain_order=True
    )
