"""Kriging: correlations between curves, and interpolated values."""

from typing import Any

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st
from nearfree.derive.reference.kriging import (
    COORDINATES,
    SAME_SHAPE,
    UNRELATED_FIELDS,
    Coordinates,
    coordinates,
    kernel,
    kriging_weights,
)

N = np.array([[1.0, 4.0, 16.0]])
SIZE = st.integers(8, 15).map(lambda power: 2**power)
SHAPES = st.lists(st.tuples(SIZE, SIZE), min_size=1, max_size=8, unique=True)
LAYER = {"d_model": 4096, "d_ff": 512, "experts": 256, "top_k": 8}
HEADS = {"heads": 32, "kv_heads": 8, "head_dim": 128}


def places(family: str, *rows: dict[str, Any]) -> Coordinates:
    """Return the places of some shapes, by default in release 1 and with even loads."""
    usual = dict.fromkeys(COORDINATES) | dict.fromkeys(UNRELATED_FIELDS, 1) | {
        "batch": 1, "backend_version": "1", "routing": "balanced",
    }  # fmt: skip
    types = dict.fromkeys((*COORDINATES, *UNRELATED_FIELDS), pl.Int64)
    frame = pl.DataFrame([usual | row for row in rows], schema_overrides=types)
    return coordinates(family, frame, np.repeat(N, len(rows), axis=0))


def products(shapes: list[tuple[int, int]], release: str = "1") -> Coordinates:
    """Return the places of products with some K and N."""
    return places("gemm", *(
        {"d_model": depth, "d_ff": width, "backend_version": release} for depth, width in shapes
    ))  # fmt: skip


@given(SHAPES)
def test_a_curve_has_all_in_common_with_itself(shapes: list[tuple[int, int]]) -> None:
    """The correlation is 1 at the same place and release, lower elsewhere, and symmetric."""
    near = kernel(products(shapes), products(shapes))
    assert np.array_equal(near, near.T)
    assert np.array_equal(near == 1.0, np.eye(len(shapes), dtype=bool))
    assert (near > 0).all()


def test_layers_of_another_span_say_nothing_of_each_other() -> None:
    """Layers with different spans are uncorrelated."""
    layer = {"heads": 64, "projected": 2**26, "batch": 1, "context": 4096}
    points = places("layer_attention", *({**layer, "span": span} for span in (1, 4, 128)))
    assert np.array_equal(kernel(points, points), np.eye(3))
    values = np.array([[0.1], [0.2], [0.3]])
    weights = kriging_weights("layer_attention", points, values)
    assert np.argmax(kernel(points, points) @ weights) == 2
    near = places("layer_attention", {**layer, "span": 4}, {**layer, "span": 4, "context": 8191})
    assert kernel(near, near)[0, 1] > 0.5


@given(SHAPES)
def test_another_release_counts_for_four_fifths(shapes: list[tuple[int, int]]) -> None:
    """Between two releases the correlation is 0.8 times that within one."""
    one, two = products(shapes), products(shapes, release="2")
    assert kernel(one, two) == pytest.approx(0.8 * kernel(one, one))
    assert set(np.diag(kernel(one, two))) == {SAME_SHAPE[1]}


@given(st.integers(0, 6), st.integers(1, 3))
def test_farther_is_less(doublings: int, more: int) -> None:
    """The correlation falls with each doubling of a size, to 1/e after three."""
    here = products([(1024, 1024)])
    near, far = (1024 * 2**distance for distance in (doublings, doublings + more))
    up = kernel(here, products([(near, 1024), (far, 1024)]))[0]
    down = kernel(products([(near, 1024), (far, 1024)]), here)[:, 0]
    assert up[0] > up[1]
    assert up == pytest.approx(down)
    assert up[1] == pytest.approx(np.exp(-(doublings + more) / 3))


@pytest.mark.parametrize(
    ("family", "usual", "changes"),
    [
        ("gemm", {"d_model": 4096, "d_ff": 4096}, ("d_model", "d_ff")),
        ("moe_triton", LAYER, ("d_model", "d_ff", "experts", "top_k")),
        ("attention_prefill", HEADS, ("heads", "kv_heads", "head_dim", "batch")),
    ],
)
def test_every_size_of_a_kind_sets_curves_apart(
    family: str, usual: dict[str, int], changes: tuple[str, ...]
) -> None:
    """A difference in any size or in the routing lowers the correlation."""
    others = [{**usual, name: 2 * usual.get(name, 1)} for name in changes]
    near = kernel(places(family, usual), places(family, *others))
    assert (near < 0.9).all()


def test_a_batch_of_rows_is_no_shape_of_a_product() -> None:
    """The batch size of products and layers leaves the correlation unchanged."""
    one, two = ({**LAYER, "batch": batch} for batch in (1, 4))
    assert kernel(places("moe_library", one), places("moe_library", two)) == 1.0
    assert places("moe_library", two).along == pytest.approx(np.log2(4 * N * 8 / 256))
    assert places("gemm", two).along == pytest.approx(np.log2(4 * N))
    assert places("attention_prefill", {**HEADS, "batch": 4}).along == pytest.approx(np.log2(N))


def test_loads_lie_in_order() -> None:
    """Even loads correlate more with a mild power law than with a steep one."""
    even, mild, steep = (
        {**LAYER, "routing": routing} for routing in ("balanced", "power_law:1.01", "power_law:1.2")
    )
    near = kernel(places("moe_triton", even), places("moe_triton", mild, steep))[0]
    assert 1 > near[0] > near[1]


def test_loads_without_curves_are_no_law_that_has_some() -> None:
    """Another exponent lies between its neighbours or beyond; measured loads by idle experts."""
    laws = [f"power_law:{exponent}" for exponent in ("0.5", "1.01", "1.1", "1.2", "1.5")]
    (axis,) = places("moe_triton", *({**LAYER, "routing": law} for law in laws)).shape.T[-1:]
    assert axis.tolist() == sorted(axis)
    assert len({*axis}) == len(laws)
    steep = np.arange(1, 257) ** -1.5
    loads = [[1 / 256] * 256, (steep / steep.sum()).tolist()]
    of = [{**LAYER, "routing": "measured:a", "shares": [load]} for load in loads]
    even, uneven = places("moe_triton", *of).shape[:, -1]
    assert 0 < even < axis[1] < uneven


@given(SHAPES, st.randoms(use_true_random=False))
def test_the_order_of_curves_changes_nothing(shapes: list[tuple[int, int]], random: Any) -> None:
    """The interpolated value does not depend on the order of the curves."""
    shuffled = random.sample(range(len(shapes)), len(shapes))
    values = np.array([[depth % 7 - 3.0, width % 5 - 2.0] for depth, width in shapes])
    product_rows = products([(3000, 5000)])
    listed, moved = (
        kernel(product_rows, products([shapes[at] for at in order]))
        @ kriging_weights("gemm", products([shapes[at] for at in order]), values[list(order)])
        for order in (range(len(shapes)), shuffled)
    )
    assert listed == pytest.approx(moved, abs=1e-9)


@given(SIZE, SIZE, st.floats(-1, 1))
def test_one_curve_says_its_own_value_damped(depth: int, width: int, value: float) -> None:
    """With one curve the value is its residual times the correlation, reduced by the noise."""
    here, there = products([(2048, 2048)]), products([(depth, width)])
    (value_,) = kernel(there, here) @ kriging_weights("gemm", here, np.array([[value]]))
    assert value_[0] == pytest.approx(value * kernel(there, here)[0, 0] / 1.02)
    assert abs(value_[0]) <= abs(value)
