"""Table `version_drift`: a change is named where the granularity changed, and nowhere else."""

from itertools import pairwise
from typing import Any

import polars as pl
import pytest
from nearfree.backends.records import ruled_packages
from nearfree.core.setting import Setting
from nearfree.derive.granularity.releases import PINNED_TRITON, Release
from nearfree.derive.outlook.drift import STUDIES, VERSION_DRIFT, Study, change, version_drift
from nearfree.derive.predict.answers import calibration_ids
from nearfree.sources.answers.granularity import moe_granularity
from nearfree.sources.answers.lookup import TunedFiles
from nearfree.sources.answers.moe import MoeQuery, MoeRules
from nearfree.sources.packages import parse_release
from nearfree.sources.record import recorded_extraction

from derive.questions import LOG, RESOLVER
from derive.sheeted import ANSWERER, CONFIG, SHEETS, sheet_table

TABLE = sheet_table()
KNOWN = {*TABLE["row_id"], *calibration_ids(LOG)}
LING = tuple(study for study in STUDIES if study.setting.experts == 256)
CALL = tuple(study for study in STUDIES if study.setting.module == "attention")[:1]
ON = ("h20", "h100")
MOST = 800


def drifted(studied: tuple[Study, ...], *releases: str, on: tuple[str, ...] = ON) -> pl.DataFrame:
    """Return the table, checked against its schema."""
    asked_releases = releases or CONFIG.releases
    rows = version_drift(
        studied,
        asked_releases,
        SHEETS,
        TABLE,
        answerer=ANSWERER,
        resolver=RESOLVER,
        epsilon=0.2,
        platform_names=on,
    )
    return VERSION_DRIFT.build(rows, KNOWN)


@pytest.fixture(scope="module")
def layers() -> pl.DataFrame:
    """Return what every recorded release says of one model's experts."""
    return drifted(LING)


def granularity(row: dict[str, Any]) -> tuple[object, ...]:
    """Return what the resolver of `nearfree granularity` says at a row's baseline."""
    extraction = recorded_extraction(LOG, row["package"], row["version"])
    assert extraction is not None
    query = MoeQuery(
        experts=row["experts"], top_k=row["top_k"], d_ff=row["d_ff"], d_model=row["d_model"],
        sm=SHEETS[row["platform"]].sm, device=SHEETS[row["platform"]].device_name,
        triton=PINNED_TRITON.get(Release(row["package"], row["version"])),
    )  # fmt: skip
    granularity = moe_granularity(extraction, query, 1, MOST)
    n = row["baseline"]
    (path,) = [step for step in granularity.kernel_path if step.first <= n <= step.last]
    (block,) = [
        interval for interval in granularity.intervals if interval.first <= n <= interval.last
    ]
    sizes = MoeRules(extraction.by_name(), TunedFiles(extraction.tuned), query, MOST).at(n)
    return (
        path.path, block.value, block.source, min(path.last, block.last),
        sizes.block_n, sizes.block_k,
    )  # fmt: skip


def test_a_change_is_named_exactly_where_the_granularity_differs(layers: pl.DataFrame) -> None:
    """Two neighbouring versions differ if their path, sizes, source or reach at the baseline do."""
    seen = set()
    for _, group in layers.sort("place").group_by("platform", "setting_key"):
        every = [(row, granularity(row)) for row in group.to_dicts()]
        for (before, was), (after, now) in pairwise(every):
            differs = was != now
            assert after["previous"] == before["version"]
            assert after["differs"] == differs == (after["change"] is not None), after["version"]
            seen.add(differs)
    assert seen == {True, False}


def test_the_oldest_version_has_nothing_before_it(layers: pl.DataFrame) -> None:
    """There is nothing to differ from, which is not the same as not differing."""
    oldest = layers.filter(place=1)
    assert set(oldest.select("package", "version").rows()) == {
        ("vllm", "0.9.1"), ("sglang", "0.5.9"),
    }  # fmt: skip
    assert oldest.select("previous", "differs", "change").null_count().rows() == [(8, 8, 8)]
    assert layers.filter(pl.col("place") > 1)["differs"].null_count() == 0


CHANGES = [
    ("skewed", "0.19.0", "BLOCK_SIZE_N 32 -> 64, BLOCK_SIZE_K 64 -> 128 (fallback)"),
    ("balanced", "0.33.0", "BLOCK_SIZE_N 64 -> 128, tau 32 -> 768, source fallback -> tuned"),
    ("skewed", "0.14.0", "path aligned -> naive, tau 256 -> 8 (fallback)"),
    ("balanced", "0.20.2", None),
]  # fmt: skip


@pytest.mark.parametrize(("routing", "version", "words"), CHANGES)
def test_changes_are_in_words(
    layers: pl.DataFrame, routing: str, version: str, words: str | None
) -> None:
    """What vLLM changed for this layer on an H20 stands there by name and value."""
    row = layers.filter(platform="h20", routing=routing, package="vllm", version=version)
    assert row["change"].to_list() == [words]


def test_every_release_has_its_answers(layers: pl.DataFrame) -> None:
    """Each row has both predictors' N_max or their refusals, and the lines behind it."""
    for name in ("resolved", "work"):
        known = layers[f"n_max_{name}"].is_not_null()
        assert (known == layers[f"refusal_{name}"].is_null()).all()
    assert layers["rule"].str.contains(r"\.(py|json):\d+-\d+ \([0-9a-f]{12}\)").all()
    timed = layers.drop_nulls("n_max_work")
    assert timed["n_max_work"].is_between(timed["baseline"], timed["grid_end"]).all()


def test_a_release_without_rules_stays_as_a_refusal() -> None:
    """A version that the log lacks has a row that says so, and the next one follows it."""
    rows = drifted(LING[:1], "vllm==0.14.0", "vllm==0.1.0", "vllm==0.9.1", on=("h20",))
    rows = rows.sort("place")
    assert rows["version"].to_list() == ["0.1.0", "0.9.1", "0.14.0"]
    refusal = "no rules of vllm 0.1.0 in the log"
    first, second, third = rows.to_dicts()
    assert first["refusal_resolved"] == first["refusal_work"] == refusal
    assert first["rule"] is None
    assert second["change"] == "a refusal -> an answer"
    assert third["differs"] is False


def test_versions_are_in_their_own_order() -> None:
    """0.5.10 comes after 0.5.9, in whatever order releases are listed."""
    listed = ("sglang==0.5.23", "sglang==0.5.10", "sglang==0.5.9")
    rows = drifted(LING[:1], *listed, on=("h20",)).sort("place")
    assert rows["version"].to_list() == ["0.5.9", "0.5.10", "0.5.23"]
    assert rows.equals(drifted(LING[:1], *reversed(listed), on=("h20",)).sort("place"))


def test_attention_calls_are_asked_of_attention_releases() -> None:
    """A call has a row a release of each attention package, with tiles instead of blocks."""
    rows = drifted(CALL, on=("h20",))
    packages = {parse_release(release)[0] for release in CONFIG.releases}
    assert set(rows["package"]) == packages & {*ruled_packages("attention")}
    flashinfer = rows.filter(package="flashinfer-python").sort("place")
    assert flashinfer["tile_rows"].to_list() == [16, 16, 16]
    assert flashinfer["m_attn"].to_list() == [4, 4, 4]
    assert flashinfer["differs"].to_list() == [None, False, False]
    assert rows["m_moe"].null_count() == rows.height


def test_other_modules_are_asked_of_no_release() -> None:
    """A product has no granularity rule, so there is nothing to follow."""
    gemm = Setting(module="gemm", backend="any", dtype="bfloat16", d_model=8, d_ff=8)
    assert drifted((Study(model="x", setting=gemm),), on=("h20",)).is_empty()


ROW = {
    "unread": None, "path": "aligned", "source": "fallback", "m_moe": 16, "block_n": 32,
    "block_k": 64, "tau": 256, "tile_rows": None, "m_attn": None, "rule": "a.py:1-2",
}  # fmt: skip


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"rule": "b.py:7-9"}, None),
        ({"m_moe": 64}, "BLOCK_SIZE_M 16 -> 64 (fallback)"),
        ({"tau": None}, "tau 256 -> no limit (fallback)"),
        ({"source": "tuned"}, "source fallback -> tuned"),
        ({"block_k": None}, "BLOCK_SIZE_K 64 -> not said (fallback)"),
        ({"unread": "why"}, "an answer -> a refusal: why"),
    ],
)
def test_how_a_change_reads(changed: dict[str, object], words: str | None) -> None:
    """Each field has its word; a rule that moved to other lines is no change."""
    assert change(ROW, ROW | changed) == words
    back = change(ROW | changed, ROW)
    assert (back is None) == (words is None)


def test_two_refusals_are_no_change() -> None:
    """Where neither version has an answer nothing is known to differ."""
    assert change(ROW | {"unread": "a"}, ROW | {"unread": "b"}) is None
