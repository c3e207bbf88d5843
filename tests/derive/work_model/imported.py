"""Made-up imported curves that follow the forms of T(N) with known constants."""

import shutil
from collections.abc import Iterator
from typing import Any

import numpy as np
from nearfree.core.setting import Setting
from nearfree.derive.tables.columns import SETTING_COLUMNS
from nearfree.derive.work_model.families import FAMILIES
from nearfree.derive.work_model.family import Fitted, neutral, ratios_of
from nearfree.log.events import LatencyImported
from nearfree.log.names import Layout
from public.test_curves import curve, put

from derive.questions import ATTENTION, FACTS, LOG
from derive.work_model.forms import COMPUTED, arrays, prepared, sizes_of
from derive.work_model.test_fit import known

STREAM = "ours"
RULES = ("vllm_0_14_0", "flash_attn_2_8_3")
"""What the log says of the releases that these curves are of."""
CONTEXTS = tuple(2**step for step in range(7, 15))
TRUE = {
    name: Fitted(
        family=name,
        values=dict.fromkeys(
            family.hypotheses,
            known(family) | neutral(family),
        ),
        band=0.0,
    )
    for name, family in FAMILIES.items()
}
"""The constants that the curves follow; they have none that shared constants leave out."""


def along_n(*names: str) -> Iterator[LatencyImported]:
    """Yield curves of some families over N."""
    for name in names:
        (part,) = prepared(*sizes_of(name))
        family, ratio = FAMILIES[name], ratios_of(FAMILIES[name], TRUE[name], part.features)
        values = TRUE[name].values[family.hypotheses[0]]
        first = family.latency_us(part.features, values, family.hypotheses[0])[:, :1]
        for row, times in zip(part.rows.to_dicts(), first * ratio, strict=True):
            fields = {field: row[field] for field in SETTING_COLUMNS if field != "setting_key"}
            yield curve(
                Setting(**fields), platform=row["platform"], kernel=row["kernel"],
                backend_version=row["backend_version"], n=tuple(row["grid"]),
                latency_us=tuple(times.tolist()),
            )  # fmt: skip


def along_contexts(*platforms: str) -> Iterator[LatencyImported]:
    """Yield curves of one position over contexts, with the tiles of a decode kernel."""
    family = FAMILIES["attention_cached"]
    for platform in platforms:
        facts = FACTS.row(by_predicate=_is(platform), named=True)
        for batch in (1, 8, 64):
            shape = {"heads": 32, "kv_heads": 8, "head_dim": 128, "batch": batch}
            features = arrays(
                [1] * len(CONTEXTS), **shape, phi=facts["peak_tflops"] * 1e6,
                beta=facts["bandwidth_gb_s"] * 1e3, sms=facts["sm_count"], element_bytes=2,
                cache_bytes=2, tile_rows=64, rows_per_position=1,
            ) | {"context": np.array([CONTEXTS], dtype=np.float64)}  # fmt: skip
            times = family.latency_us(features, known(family), "split_keys")[0]
            setting = Setting(**{**ATTENTION, **shape, "dtype": "bfloat16", "context": CONTEXTS[0]})
            yield curve(setting, platform=platform, n=(1,) * len(CONTEXTS), contexts=CONTEXTS,
                        latency_us=tuple(times.tolist()))  # fmt: skip


def _is(platform: str) -> Any:
    import polars as pl

    return (pl.col("platform") == platform) & (pl.col("dtype") == "bfloat16")


def put_curves(layout: Layout) -> None:
    """Import curves of every family on two platforms, with the rules of their releases."""
    names = [name for name in COMPUTED if name != "attention_cached"]
    put(layout, STREAM, *along_n(*names), *along_contexts("a100", "h100"))
    put_rules(layout)


def put_rules(layout: Layout) -> None:
    """Write the rules of those releases into a log."""
    for stream in RULES:
        shutil.copytree(LOG.events / "sources" / stream, layout.events / "sources" / stream)
