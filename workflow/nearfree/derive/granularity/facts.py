"""The platform facts that laws and rules use: one row per platform and dtype."""

from collections.abc import Mapping

import polars as pl

from nearfree.core.precision import FORMATS
from nearfree.derive.tables.platforms import PLATFORMS, newest_balances, platform_rows
from nearfree.hardware.platforms import Platform
from nearfree.log.evidence import read_scope
from nearfree.log.names import Layout

FACTS_SCHEMA = {
    "platform": pl.String,
    "dtype": pl.String,
    "peak_tflops": pl.Float64,
    "bandwidth_gb_s": pl.Float64,
    "balance_flop_per_byte": pl.Float64,
    "sm": pl.Int64,
    "sm_count": pl.Int64,
    "device_name": pl.String,
    "no_units": pl.Boolean,
    "nvlink": pl.Int64,
    "link_gb_s": pl.Float64,
    "node_gpus": pl.Int64,
    "machine_gpus": pl.Int64,
    "direct_gpus": pl.Int64,
    "network_gb_s": pl.Float64,
    "host_cpu": pl.String,
}
"""phi, beta and rho of the dtype; compute capability (90 for 9.0), SMs, the driver's device name,
whether the device is known to have no units for the dtype, and the interconnect: the generation of
NVLink, the bandwidth of NVLink or PCIe, GPUs per node, per machine and with direct access over
PCIe, the bandwidth of the network, and the host CPU where the GPU comes with one."""
_DEVICE_FACTS = (
    "sm", "device_name", "nvlink", "link_gb_s", "node_gpus", "machine_gpus", "direct_gpus",
    "network_gb_s", "host_cpu",
)  # fmt: skip


def _device_facts(sheet: Platform) -> dict[str, object]:
    """Return the facts of a platform's device and interconnect."""
    derived = {"node_gpus": sheet.joined_gpus, "direct_gpus": sheet.direct}
    return {fact: getattr(sheet, fact) for fact in _DEVICE_FACTS} | derived


def datasheet_facts(platforms: Mapping[str, Platform]) -> pl.DataFrame:
    """Return the facts of datasheets, a row per platform and dtype; null where one is unknown."""
    rows = [
        {
            "platform": name,
            "dtype": dtype,
            "peak_tflops": sheet.peak(dtype),
            "bandwidth_gb_s": sheet.bandwidth_gb_s,
            "balance_flop_per_byte": sheet.balance(dtype),
            "sm_count": sheet.sm_count,
            "no_units": sheet.lacks(dtype),
            **_device_facts(sheet),
        }
        for name, sheet in platforms.items()
        for dtype in FORMATS
    ]
    return pl.DataFrame(rows, schema=FACTS_SCHEMA)


def probed_facts(probed: pl.DataFrame, platforms: Mapping[str, Platform]) -> pl.DataFrame:
    """Return the facts of probes; datasheets give what a probe does not measure.

    `probed` are rows of the table `platforms`, one per platform and dtype. For a CPU its `sm_count`
    is the cores, which are no SMs.
    """
    rows = [
        {"platform": name, "has_sms": sheet.kind == "cuda", **_device_facts(sheet)}
        for name, sheet in platforms.items()
    ]
    types = {name: FACTS_SCHEMA[name] for name in ("platform", *_DEVICE_FACTS)}
    types["has_sms"] = pl.Boolean
    return (
        probed.join(pl.DataFrame(rows, schema=types), on="platform", how="left")
        .with_columns(
            pl.when("has_sms").then("sm_count").alias("sm_count"),
            pl.lit(value=False).alias("no_units"),
        )
        .select(*FACTS_SCHEMA)
    )


def platform_facts(layout: Layout, platforms: Mapping[str, Platform]) -> pl.DataFrame:
    """Return the facts of datasheets, and of the newest probe where a platform has no datasheet.

    The probe's beta is the one measured by streaming.
    """
    sheets = datasheet_facts(platforms)
    rows = [
        row
        for name, sheet in platforms.items()
        if not sheet.peak_tflops
        for row in platform_rows({}, read_scope(layout, name, stream="hardware"), name)
    ]
    newest = newest_balances(PLATFORMS.frame(rows).filter(basis="probed_stream"))
    probed = probed_facts(newest, platforms)
    unknown = sheets.join(probed, on=["platform", "dtype"], how="anti", maintain_order="left")
    return pl.concat([unknown, probed])


def with_facts(questions: pl.DataFrame, facts: pl.DataFrame) -> pl.DataFrame:
    """Return questions with the facts of their platform; `known` is null where there are none.

    A question without a `window` is about a call without one. A question with `gpus` but without
    `nodes` is about the fewest nodes that hold the GPUs. `fewest`, the GPUs on the least filled
    node, defaults to those that full nodes leave over. `facts` has one row per platform and dtype,
    as `datasheet_facts` gives them.
    """
    known = facts.with_columns(pl.lit(value=True).alias("known"))
    absent = [name for name in ("window", "nodes", "fewest") if name not in questions.columns]
    rows = questions.with_columns(pl.lit(None, pl.Int64).alias(name) for name in absent).join(
        known, on=["platform", "dtype"], how="left", validate="m:1", maintain_order="left"
    )
    if "gpus" not in questions.columns:
        return rows
    fewest = (pl.col("gpus") / pl.col("node_gpus")).ceil().cast(pl.Int64)
    rows = rows.with_columns(pl.coalesce("nodes", fewest))
    gpus, nodes, node_gpus = pl.col("gpus"), pl.col("nodes"), pl.col("node_gpus")
    remainder = gpus - (nodes - 1) * node_gpus
    return rows.with_columns(
        pl.coalesce("fewest", pl.when(remainder > 0).then(remainder).otherwise(gpus // nodes))
    )


def facts_by_format(rows: pl.DataFrame) -> pl.DataFrame:
    """Return rows of the table `platforms`, repeated for each format that runs at a row's phi."""
    peaks = {"format": list(FORMATS), "dtype": [format_.peak for format_ in FORMATS.values()]}
    by_format = rows.join(pl.DataFrame(peaks), on="dtype", maintain_order="left_right")
    return by_format.with_columns(pl.col("format").alias("dtype")).select(rows.columns)


def sheet_facts(sheets: Mapping[str, Platform], platforms: pl.DataFrame) -> pl.DataFrame:
    """Return the facts of datasheets with `fact_id`, null where the table has no such row."""
    fact_ids = facts_by_format(platforms.filter(basis="datasheet")).select(
        "platform", "dtype", pl.col("row_id").alias("fact_id")
    )
    return datasheet_facts(sheets).join(
        fact_ids, on=["platform", "dtype"], how="left", maintain_order="left"
    )
