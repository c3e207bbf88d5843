"""Table `kernels`: which stored curves are shown, with their T(N)."""

from pathlib import Path
from tempfile import TemporaryDirectory

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nearfree.derive.reference.kernels import (
    KERNELS,
    at_shapes,
    kernel_rows,
    newest_releases,
    write_kernels,
)
from nearfree.derive.reference.kriging import COORDINATES
from nearfree.derive.tables.store import read_table
from nearfree.log.events import KernelReferenced
from nearfree.log.names import Layout

from derive.reference.kept import (
    HEADS,
    LAYER,
    MEMBER,
    PRODUCT,
    RATIOS,
    SOURCE,
    Kept,
    kept_events,
    kept_kernel,
    kept_on_two,
    write_kept,
)


def made(*kernels: KernelReferenced, epsilon: float = 0.2) -> pl.DataFrame:
    """Return the table of some kernels, checked against its schema."""
    events = kept_events(*kernels)
    return KERNELS.build(kernel_rows(events, epsilon), [event.event_id for event in events])


def test_every_module_has_the_points_of_its_curves() -> None:
    """Each row is a point of a curve, with the values of its event and of its file."""
    table = made(*kept_on_two())
    assert set(table["module"]) == {"gemm", "moe_ffn", "attention"}
    awake = [n for n in RATIOS if n >= LAYER["experts"] / LAYER["top_k"]]
    assert table.height == 2 * 2 * (2 * len(RATIOS) + len(awake))
    assert table["origin"].unique().to_list() == ["imported"]
    assert table["source"].unique().to_list() == [SOURCE]
    assert table["member"].unique().to_list() == [MEMBER]
    assert table.filter(module="moe_ffn")["routing"].unique().to_list() == ["balanced"]


def test_latency_is_that_of_the_baseline_times_the_kept_ratio() -> None:
    """T(baseline) is exact to 0.1 %; other T(N) are exact to half a step of 8 bits."""
    row = made(kept_kernel(Kept(shape=PRODUCT, first_us=40.0))).sort("n")
    assert row["n"].to_list() == list(RATIOS)
    assert (row["latency_us"][0], row["ratio"][0]) == (pytest.approx(40.0, rel=1e-3), 1.0)
    half = 2.5 ** (0.5 / 255)
    for ratio, latency, meant in zip(row["ratio"], row["latency_us"], RATIOS.values(), strict=True):
        assert meant / half / 1.0001 <= ratio <= meant * half * 1.0001
        assert latency == pytest.approx(40.0 * ratio, rel=1e-3)


def test_experts_are_shown_from_where_all_are_awake() -> None:
    """Experts are shown from the first N that activates all of them."""
    kernel_event = kept_kernel(Kept(shape=LAYER, first_us=40.0), family="moe_triton")
    shown = made(kernel_event).sort("n")
    assert shown["n"].to_list() == [4, 8, 16]
    assert shown["baseline"].unique().to_list() == [4]
    assert shown["ratio"].to_list() == pytest.approx([1.0, 1.5 / 1.15, 2.5 / 1.15], rel=5e-3)
    assert shown["latency_us"].to_list() == pytest.approx([46.0, 60.0, 100.0], rel=5e-3)


def test_a_baseline_that_codes_miss_is_still_its_own() -> None:
    """T(baseline) / T(baseline) is 1 even if no 8-bit code is exactly 1."""
    ratios = {1: 1.0, 2: 0.93, 4: 1.31, 8: 2.0}
    first = made(kept_kernel(Kept(shape=PRODUCT, ratios=ratios))).sort("n").row(0, named=True)
    assert (first["ratio"], first["baseline"]) == (1.0, 1)
    assert first["latency_us"] == pytest.approx(100.0, rel=1e-3)


@pytest.mark.slow
@given(
    st.lists(st.floats(0.5, 4.0), min_size=1, max_size=8),
    st.sampled_from([0.05, 0.2, 0.5]),
)
@settings(max_examples=40)
def test_n_max_is_the_last_kept_point_within_the_tolerance(
    above: list[float], epsilon: float
) -> None:
    """N_max and the next N follow from the ratios of the table's rows."""
    ratios = {2**step: ratio for step, ratio in enumerate([1.0, *above])}
    table = made(kept_kernel(Kept(shape=PRODUCT, ratios=ratios)), epsilon=epsilon).sort("n")
    within = [n for n, ratio in table.select("n", "ratio").rows() if ratio <= 1 + epsilon]
    last = max(within)
    assert table["n_max"].unique().to_list() == [last]
    after = [n for n in table["n"] if n > last]
    assert table["next_n"].unique().to_list() == [min(after) if after else None]
    assert table["epsilon"].unique().to_list() == [epsilon]


def test_a_row_names_the_event_of_its_kernel() -> None:
    """A row is made from the event of its platform and backend."""
    kernels = kept_on_two()
    events = {event.event_id: event.data for event in kept_events(*kernels)}
    for row in made(*kernels).to_dicts():
        (event,) = row["from_ids"]
        named = ("platform", "backend", "family", "kernel", "dtype")
        assert [row[name] for name in named] == [getattr(events[event], name) for name in named]


CURVE = st.fixed_dictionaries(
    {
        "platform": st.sampled_from(["a100", "h100", "h200", "b200"]),
        "backend": st.sampled_from(["sglang", "vllm"]),
        "module": st.sampled_from(["gemm", "moe_ffn"]),
        "d_model": st.sampled_from([2048, 4096, 8192]),
        "d_ff": st.sampled_from([2048, 4096, 8192]),
        "experts": st.sampled_from([None, 8]),
    }
)
TYPES = {
    **dict.fromkeys(("platform", "backend", "module"), pl.String),
    **dict.fromkeys(COORDINATES, pl.Int64),
}


@given(st.lists(CURVE, min_size=1, max_size=40), st.randoms(use_true_random=False))
def test_a_module_is_shown_at_the_shape_that_most_platforms_have(curves: list, shuffled) -> None:
    """Among equals it is the shape of most backends, then most weights, in any order of curves."""
    shapes_us = at_shapes(pl.DataFrame(curves, schema=TYPES))
    for module in {curve["module"] for curve in curves}:
        mine = [curve for curve in curves if curve["module"] == module]
        places: dict[tuple, set] = {}
        for curve in mine:
            shape = (curve["d_model"], curve["d_ff"], curve["experts"])
            places.setdefault(shape, set()).add((curve["platform"], curve["backend"]))
        rank = {
            shape: (
                len({platform for platform, _ in on}),
                len(on),
                shape[0] * shape[1] * (shape[2] or 1),
            )
            for shape, on in places.items()
        }
        (shape,) = (
            shapes_us.filter(module=module).select("d_model", "d_ff", "experts").unique().rows()
        )
        assert rank[shape] == max(rank.values())
        alike = [curve for curve in mine if (curve["d_model"], curve["d_ff"], curve["experts"])
                 == shape]  # fmt: skip
        assert shapes_us.filter(module=module).height == len(alike)
    again = list(curves)
    shuffled.shuffle(again)
    other = at_shapes(pl.DataFrame(again, schema=TYPES))
    assert other.sort(pl.all()).equals(shapes_us.sort(pl.all()))


def test_the_newest_release_is_that_of_each_platform_and_backend() -> None:
    """The newest release is chosen per platform and backend, and 0.10 is newer than 0.9."""
    rows = pl.DataFrame(
        [
            ("gemm", "h100", "vllm", "0.9.0"),
            ("gemm", "h100", "vllm", "0.10.0"),
            ("gemm", "h100", "sglang", "0.5.9"),
            ("gemm", "h200", "vllm", "0.9.0"),
            ("gemm", "h200", "vllm", "unknown"),
            ("attention", "h200", "vllm", "unknown"),
        ],
        schema=["module", "platform", "backend", "backend_version"],
        orient="row",
    )
    assert newest_releases(rows).rows() == [rows.row(place) for place in (1, 2, 3, 5)]


@pytest.mark.parametrize(
    "hidden",
    [
        kept_kernel(Kept(shape=PRODUCT), dtype="float8"),
        kept_kernel(Kept(shape=PRODUCT), weights="int4"),
        kept_kernel(Kept(shape=HEADS), family="attention_prefill", kv_dtype="float8"),
        kept_kernel(Kept(shape=HEADS), family="attention_cached"),
        kept_kernel(Kept(shape={**LAYER, "routing": "power_law:1.2"}), family="moe_triton"),
        kept_kernel(Kept(shape={**HEADS, "batch": 8}), family="attention_prefill"),
    ],
    ids=["float8", "int4 weights", "float8 cache", "a cache", "a power law", "eight requests"],
)
def test_what_is_not_plain_is_not_shown(hidden: KernelReferenced) -> None:
    """Other formats, caches, skewed routing and several requests are not in the table."""
    assert made(hidden).is_empty()
    plain = kept_kernel(Kept(shape=PRODUCT))
    assert set(made(plain, hidden)["d_model"]) == {PRODUCT["d_model"]}


def test_of_curves_that_nothing_tells_apart_the_first_is_shown() -> None:
    """Of two curves with equal shape and release the first is shown."""
    twice = kept_kernel(Kept(shape=PRODUCT, first_us=10.0), Kept(shape=PRODUCT, first_us=20.0))
    table = made(twice)
    assert table.height == len(RATIOS)
    assert table.sort("n")["latency_us"][0] == pytest.approx(10.0, rel=1e-3)


def test_without_a_take_the_table_is_empty(layout: Layout) -> None:
    """Without kernels the table is empty."""
    write_kernels(layout, "public", epsilon=0.2)
    table = read_table(layout, "public", KERNELS)
    assert table.is_empty()
    assert table.columns == list(KERNELS.columns)


def test_the_newest_take_of_a_kernel_counts(layout: Layout) -> None:
    """A newer take replaces the curves of its kernels only."""
    write_kept(layout, kept_kernel(Kept(shape=PRODUCT), platform="a100"))
    write_kept(layout, kept_kernel(Kept(shape=PRODUCT), platform="h200"), take=2)
    write_kernels(layout, "public", epsilon=0.2)
    before = read_table(layout, "public", KERNELS)
    assert set(before["platform"]) == {"a100", "h200"}
    write_kept(layout, kept_kernel(Kept(shape=PRODUCT), platform="a100"), take=3)
    write_kernels(layout, "public", epsilon=0.2)
    after = read_table(layout, "public", KERNELS)
    assert after.height == before.height
    events = [set(rows.filter(platform="a100")["from_ids"].explode()) for rows in (before, after)]
    assert not events[0] & events[1]


def test_the_same_log_gives_the_same_bytes() -> None:
    """Two runs in two folders give equal bytes of table and manifest."""
    ratio = []
    for _ in range(2):
        with TemporaryDirectory() as folder:
            layout = Layout(Path(folder))
            write_kept(layout, *kept_on_two())
            write_kernels(layout, "public", epsilon=0.2)
            tables = sorted((layout.root / "tables" / "public").iterdir())
            ratio.append([path.read_bytes() for path in tables])
    assert ratio[0] == ratio[1]
