"""Groups: a kernel's curves stored in 8 bits, and the answers that follow from them."""

from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from msgspec import structs
from nearfree.backends.public_kernels import TWINS
from nearfree.derive.reference.build import groups_of
from nearfree.derive.reference.groups import (
    LEAST_CURVES,
    Coded,
    Group,
    fitted_group,
    form_us,
    keys_of,
)
from nearfree.derive.reference.kriging import coordinates
from nearfree.derive.truth.truth import last_pass

from derive.reference.made import (
    DEPTHS,
    EPSILON,
    HEADS,
    LAYER,
    ROWS,
    by_depth,
    noisy,
    only_curves,
    only_group,
    products,
)
from derive.work_model.imported import TRUE

VALUES = arrays.arrays(
    float, st.tuples(st.integers(1, 5), st.integers(1, 6)), elements=st.floats(-8, 8)
)


def lengths(values: np.ndarray, data: st.DataObject) -> np.ndarray:
    """Return a mask of valid values: the first ones of each row, one or more."""
    ends = data.draw(st.lists(st.integers(1, values.shape[1]), min_size=len(values),
                              max_size=len(values)))  # fmt: skip
    return np.arange(values.shape[1])[None, :] < np.array(ends)[:, None]


@given(VALUES, st.data())
def test_eight_bits_round_by_half_a_step_at_most(values: np.ndarray, data: Any) -> None:
    """A stored number is off by at most half a 255th of its range."""
    counts = lengths(values, data)
    coded = Coded.of(values, counts)
    back = coded.values(counts)
    ends = np.abs(values[counts]).max() * 5e-5
    step = (values[counts].max() - values[counts].min() + 2 * ends) / 255
    assert np.abs(back - values)[counts].max() <= step / 2 + 2 * ends + 1e-12
    assert len(coded.codes) == counts.sum()


@given(VALUES, st.data())
def test_what_came_back_is_kept_as_it_is(values: np.ndarray, data: Any) -> None:
    """Rounding rounded numbers again moves each by at most one code."""
    counts = lengths(values, data)
    once = Coded.of(values, counts).values(counts)
    twice = Coded.of(once, counts).values(counts)
    assert np.abs(twice - once).max() <= np.ptp(once) / 255 + 1e-3 * np.abs(once).max()


@given(VALUES, st.data())
def test_what_does_not_count_repeats_the_last_that_does(values: np.ndarray, data: Any) -> None:
    """After a row's last valid point that point is repeated."""
    counts = lengths(values, data)
    back = Coded.of(values, counts).values(counts)
    for row, own in zip(back, counts, strict=True):
        assert (row[~own] == row[own][-1]).all()
    alone = Coded.of(np.where(counts, values, 99.0), counts)
    assert alone == Coded.of(values, counts)


@pytest.mark.parametrize("value", [0.0, -0.25, 3.0])
def test_numbers_that_are_all_one(value: float) -> None:
    """Equal numbers, and a single one, are stored exactly."""
    for shape in ((3, 4), (1, 1)):
        every = np.full(shape, value)
        counts = np.ones(shape, dtype=bool)
        assert Coded.of(every, counts).values(counts).tolist() == every.tolist()


OF_EACH = {
    "gemm": products(),
    "moe_library": [{**LAYER, "d_ff": d_ff} for d_ff in (512, 1024, 1536, 2048)],
    "attention_prefill": [{**HEADS, "heads": depth} for depth in (32, 64, 96, 128)],
}


@pytest.mark.slow
@pytest.mark.parametrize("family", OF_EACH)
def test_a_measured_curve_is_answered_by_itself(family: str) -> None:
    """The form times exp(residual) is the measured T(N), within rounding."""
    every = only_curves(*OF_EACH[family], bent=noisy(3))
    group = only_group(*OF_EACH[family], bent=noisy(3))
    points = coordinates(family, every.part.rows, every.part.features["n"])
    residual, near = group.residuals(points)
    assert (near.max(axis=1) == 1.0).all()
    times = form_us(group.key.family, group.values, every.part.features) * np.exp(residual)
    mask = np.zeros(times.shape, dtype=bool)
    mask[:, : group.counts.shape[1]] = group.counts
    half = (group.residual.high - group.residual.low) / 255 / 2
    assert np.abs(np.log(times / every.latency_us))[mask].max() <= half + 1e-4
    assert group.first_us == pytest.approx(every.latency_us[:, 0], rel=1.01e-3)


@pytest.mark.parametrize("family", OF_EACH)
def test_the_ratio_is_that_of_the_curve(family: str) -> None:
    """T(N) / T(baseline) of a group is the measured ratio, within rounding."""
    every = only_curves(*OF_EACH[family], bent=noisy(4))
    group = only_group(*OF_EACH[family], bent=noisy(4))
    wide = group.counts.shape[1]
    true = np.log(every.latency_us / every.latency_us[:, :1])[:, :wide]
    off = np.abs(group.ratio.values(group.counts) - true)[group.counts]
    assert off.max() <= (group.ratio.high - group.ratio.low) / 255 / 2 + 1e-4


def test_a_curve_is_kept_up_to_four_times_its_n_max() -> None:
    """Points beyond 4 N_max are dropped; at least two stay."""

    def steep(row: dict[str, Any]) -> Any:
        n = np.array(row["grid"], dtype=float)
        return np.where(n > row["d_model"] / 1024, 1.0, 0.0) if row["d_model"] > 3072 else np.log(n)

    every = only_curves(*products(), bent=steep)
    group = only_group(*products(), bent=steep)
    ratio = every.latency_us / every.latency_us[:, :1]
    n_max = 2.0 ** last_pass(ratio <= 1 + EPSILON)
    ends = np.where(group.counts, group.n, 0).max(axis=1)
    assert n_max.tolist() == [1, 4, 4, 4, 4, 8]
    assert ends.tolist() == [4, 16, 16, 16, 16, 32]
    assert group.n.shape[1] == 6


def test_two_points_of_a_coarse_grid_stay() -> None:
    """If the N after N_max is more than four times N_max, it is kept all the same."""
    every = only_curves(*products(), bent=lambda row: np.log(np.array(row["grid"], dtype=float)))
    some = [0, 4, 7]
    features = {
        name: value[:, some] if isinstance(value, np.ndarray) and value.shape[1] == 8 else value
        for name, value in every.part.features.items()
    }
    measured = every.measured
    coarse = type(measured)(features=features, latency_us=measured.latency_us[:, some],
                            counts=measured.counts[:, some])  # fmt: skip
    group = fitted_group(every.keys[0], every.part.rows, coarse, every.members, EPSILON)
    assert group is not None
    assert group.n.tolist() == [[1.0, 16.0]] * len(DEPTHS)


def test_beyond_its_ends_a_curve_s_residual_is_that_of_its_ends() -> None:
    """Outside a curve's rows the residual is that of the nearer end."""
    group = only_group(*products(), bent=noisy(5))
    places = coordinates("gemm", group.curves, group.n)
    residual, _ = group.residuals(places)
    for rows, end in ((1e-3, 0), (1e6, -1)):
        points = coordinates("gemm", group.curves, np.full((len(DEPTHS), 1), rows))
        residuals, _ = group.residuals(points)
        assert residuals[:, 0] == pytest.approx(residual[:, end])


def test_a_curve_that_ends_early_goes_on_as_it_ended() -> None:
    """Beyond a curve's last N its last residual is used."""

    def short(row: dict[str, Any]) -> Any:
        n = np.array(row["grid"], dtype=float)
        return np.where(n > 2, 1.0, 0.0) if row["d_model"] == DEPTHS[0] else 0.0

    group = only_group(*products(), bent=short)
    assert group.counts.sum(axis=1)[0] < group.counts.shape[1]
    (row,) = only_curves(products()[0]).part.rows.rows(named=True)
    points = coordinates("gemm", pl.DataFrame([row]), np.array([[8.0, 64.0, 4096.0]]))
    residuals, _ = group.residuals(points)
    assert residuals[0].tolist() == pytest.approx([residuals[0, 0]] * 3)


def test_between_points_the_residual_is_between_theirs() -> None:
    """Between two N the residual is interpolated over log(rows)."""
    group = only_group(*products(), bent=noisy(6))
    at = coordinates("gemm", group.curves, np.tile([[4.0, 4 * 2**0.5, 8.0]], (len(DEPTHS), 1)))
    residuals, _ = group.residuals(at)
    assert residuals[:, 1] == pytest.approx((residuals[:, 0] + residuals[:, 2]) / 2)


def test_a_shape_between_two_takes_after_both() -> None:
    """The residual of a depth between two measured ones lies between theirs."""
    depths = (3072, 4096, 6144, 8192)
    group = only_group(*products(depths=depths), bent=by_depth)
    every = only_curves(*products(depths=(3584, 5120, 7168)))
    points = coordinates("gemm", every.part.rows, every.part.features["n"])
    residuals, near = group.residuals(points)
    own, _ = group.residuals(coordinates("gemm", group.curves, group.n))
    assert (near < 0.97).all()
    assert np.diff(residuals[:, 0]).min() > 0
    assert own[0, 0] < residuals[0, 0] < residuals[-1, 0] < own[-1, 0]


def test_a_release_answers_for_itself_and_all_together_for_another() -> None:
    """A shape uses its own release's curve; for another release, the mean of all."""
    bent = {"1.0": 0.0, "2.0": 0.18}
    group = only_group(
        *products(), *products(backend_version="2.0"), bent=lambda row: bent[row["backend_version"]]
    )
    own = group.residual.values(group.counts)
    residuals, _ = group.residuals(coordinates("gemm", group.curves, group.n))
    assert residuals == pytest.approx(own, abs=1e-8)  # kriged to nine decimals
    third = group.curves.with_columns(pl.lit("3.0").alias("backend_version"))
    expected, near = group.residuals(coordinates("gemm", third, group.n))
    one, two = np.split(own, 2)
    assert expected == pytest.approx(np.tile((one + two) / 2, (2, 1)), abs=1e-8)
    assert near.max() == 0.8


@pytest.mark.parametrize("count", range(1, len(DEPTHS) + 1))
def test_few_curves_are_no_group(count: int) -> None:
    """Fewer than four curves make no group."""
    every = only_curves(*products(depths=DEPTHS[:count]))
    group = fitted_group(every.keys[0], every.part.rows, every.measured, every.members, EPSILON)
    assert (group is None) == (count < LEAST_CURVES == 4)


def test_float16_is_what_bfloat16_is() -> None:
    """float16 and bfloat16 have one key; every other format has its own."""
    names = ({"dtype": "float16"}, {"dtype": "bfloat16"}, {"dtype": "float8"})
    frame = pl.concat(only_curves({**ROWS, **name}).part.rows for name in names)
    float16, bfloat16, float8 = keys_of(frame)
    assert float16 == bfloat16 != float8
    stored = frame.with_columns(pl.lit("float16").alias("weights"), kv_dtype=pl.lit("float16"))
    assert keys_of(stored)[2] == float8._replace(weights="bfloat16", kv_dtype="bfloat16")


def test_a_kernel_without_curves_has_those_of_the_same_source() -> None:
    """FlashInfer's CUTLASS experts in blocks use TensorRT-LLM's key."""
    (name, (backend, kernel)), *_ = TWINS.items()
    frame = only_curves(ROWS).part.rows.with_columns(kernel=pl.lit(name))
    assert {(key.backend, key.kernel) for key in keys_of(frame)} == {(backend, kernel)}
    own = keys_of(frame.with_columns(kernel=pl.lit("some_cutlass")))
    assert {key.kernel for key in own} == {"some_cutlass"}


def test_a_group_says_where_each_curve_is_from() -> None:
    """A group names the release, shape and file of each curve, in the order of the curves."""
    group: Group = only_group(*products(), *products(backend_version="2.0"))
    assert group.curves["d_model"].to_list() == [*DEPTHS, *DEPTHS]
    assert set(group.curves.select("backend_version", "member").rows()) == {
        ("1.0", "h100/1.0"), ("2.0", "h100/2.0"),
    }  # fmt: skip


def test_the_depth_of_a_tile_is_found_in_nvfp4_alone() -> None:
    """Curves that wait for one tile give its depth in NVFP4; in 16 bits the constant is neutral."""
    depths = (16384, 24576, 32768, 49152, 65536)
    for dtype, expected in (("nvfp4", pytest.approx(2.0, rel=0.05)), ("bfloat16", 0.0)):
        curves = only_curves(*products("b200", depths=depths, d_ff=2048, dtype=dtype))
        values = {name: {**of, "depth_us": 2.0} for name, of in TRUE["gemm"].values.items()}
        times = form_us("gemm", values, curves.part.features)
        (group,) = groups_of(structs.replace(curves, latency_us=times), EPSILON).values()
        assert [of["depth_us"] for of in group.values.values()] == [expected, expected]
