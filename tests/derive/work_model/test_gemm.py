"""T(N) of matrix products: sums over products, padding, and tiles that fit the hardware."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from nearfree.derive.work_model.gemm import GEMM, gemm_features, latency_us

from derive.questions import DENSE
from derive.work_model.forms import H100, arrays, constants, facts_of, start

VALUES = start(GEMM)


def of(question: dict[str, Any], hypothesis: str, **values: float) -> np.ndarray:
    """Return T(N) of a question over a grid of powers of two."""
    rows = facts_of({**question, "platform": "h100"})
    n = np.array([2.0 ** np.arange(11)])
    time_us: np.ndarray = latency_us(gemm_features(rows, n), VALUES | values, hypothesis)[0]
    return time_us


@pytest.mark.parametrize("hypothesis", GEMM.hypotheses)
@pytest.mark.parametrize("gated", [None, False, True])
def test_a_dense_ffn_is_its_products(hypothesis: str, gated: bool | None) -> None:  # noqa: FBT001
    """Up (twice as wide if gated) and down run one after the other; the fixed time counts once."""
    up = {"module": "gemm", "backend": "torch", "d_model": 4096, "d_ff": 9216 * (2 if gated else 1)}
    down = {**up, "d_model": 9216, "d_ff": 4096}
    ffn = of({**DENSE, "gated": gated}, hypothesis, fixed_us=7.0) - 7.0
    parts = [of(product_us, hypothesis, fixed_us=0.0) for product_us in (up, down)]
    assert ffn == pytest.approx(parts[0] + parts[1])


@pytest.mark.parametrize(("hypothesis", "tile"), [("tile_16", 16), ("tile_128", 128)])
def test_padding_to_a_tile(hypothesis: str, tile: int) -> None:
    """Apart from the traffic of its rows, T is constant within a tile and rises with the next."""
    n = [1, tile - 1, tile, tile + 1]
    features = arrays(n, **H100) | {"matrices": [(np.array([[8192.0]]), np.array([[8192.0]]), 1)]}
    time_us = latency_us(features, VALUES, hypothesis)[0]
    moved = np.array(n) * 2 * 8192 * 2 / (VALUES["bandwidth_share"] * H100["beta"])
    core = time_us - moved
    assert core[:3] == pytest.approx(core[0], rel=1e-12)
    assert core[3] > core[0]


@pytest.mark.parametrize(
    ("flop_per_byte", "tile"), [(37.0, 32), (64.0, 64), (127.9, 64), (128.0, 128), (600.0, 128)]
)
def test_no_tile_outlasts_its_weights(flop_per_byte: float, tile: int) -> None:
    """If rho s / 2 is small, the tile is the largest power of two below it."""
    facts = {**H100, "phi": flop_per_byte * H100["beta"]}
    n = [1, tile, tile + 1]
    features = arrays(n, **facts) | {"matrices": [(np.array([[8192.0]]), np.array([[8192.0]]), 1)]}
    time_us = latency_us(features, VALUES, "tile_128")[0]
    moved = np.array(n) * 2 * 8192 * 2 / (VALUES["bandwidth_share"] * H100["beta"])
    core = time_us - moved
    assert core[1] == pytest.approx(core[0], rel=1e-12)
    assert core[2] > core[0] * (1 + 1e-6)


def at_rows(n: list[int], balance: float, ratio: float | None = None) -> np.ndarray:
    """Return T of a product on a chip of some balance in FLOP/byte, without its rows' traffic.

    `ratio` is that balance over a sibling's whose constants they are.
    """
    facts = {**H100, "phi": balance * H100["beta"]}
    features = arrays(n, **facts) | {"matrices": [(np.array([[8192.0]]), np.array([[8192.0]]), 1)]}
    of_sibling = {} if ratio is None else {"balance_ratio": np.array([[ratio]])}
    time_us = latency_us(features | of_sibling, VALUES, "tile_128")[0]
    moved = np.array(n) * 2 * 8192 * 2 / (VALUES["bandwidth_share"] * H100["beta"])
    return np.asarray(time_us - moved)


@pytest.mark.parametrize(
    ("here", "there"),
    [(164.0, 419.0), (117.0, 293.0), (206.0, 295.0), (295.0, 206.0), (70.0, 90.0)],
)
def test_few_rows_take_the_share_of_bandwidth_that_they_take_on_a_sibling(
    here: float, there: float
) -> None:
    """With equal beta T(1) is the sibling's; rows beyond a tile are padded as ever."""
    ratio = here / there
    assert at_rows([1], here, ratio) == pytest.approx(at_rows([1], there))
    many = [129, 256, 1024]
    assert at_rows(many, here, ratio) == pytest.approx(at_rows(many, here))
    rising = at_rows([*range(1, 300)], here, ratio)
    assert (np.diff(rising) >= -1e-9).all()


def test_a_chip_of_equal_balance_is_padded_as_its_sibling() -> None:
    """At a ratio of one nothing differs."""
    n = [*range(1, 300)]
    assert at_rows(n, 295.0, 1.0).tolist() == at_rows(n, 295.0).tolist()


def one_product(n: list[int], depth: float, columns: float, **values: float) -> np.ndarray:
    """Return T(N) of a product of K by columns, without the traffic of its own rows."""
    matrix = (np.array([[depth]]), np.array([[columns]]), 1)
    features = arrays(n, **H100) | {"matrices": [matrix]}
    time_us = latency_us(features, VALUES | {"fixed_us": 0.0} | values, "tile_128")[0]
    beta = VALUES["bandwidth_share"] * H100["beta"]
    moved: np.ndarray = np.array(n) * 2 * (depth + columns) / beta
    return np.asarray(time_us - moved)


def test_a_tile_goes_through_all_of_k() -> None:
    """With fewer tiles than SMs T(1) does not fall with fewer columns, but it grows with K."""
    deep = {"depth_us": 5.0, "sharpness": 8.0}
    few, more = (one_product([1], 65536, columns, **deep) for columns in (2048, 4096))
    assert few == pytest.approx(5.0 * 65.536, rel=1e-2)
    assert more == pytest.approx(few, rel=1e-2)
    assert one_product([1], 131072, 2048, **deep) == pytest.approx(2 * few, rel=1e-9)
    plain = {"depth_us": 0.0}
    few, more = (one_product([1], 65536, columns, **plain) for columns in (2048, 4096))
    assert more == pytest.approx(2 * few)


def test_rows_run_on_sms_that_stand_still() -> None:
    """T(N) is one tile's time until tiles fill the SMs, then the time of each SM's share."""
    deep = {"depth_us": 10.0, "sharpness": 8.0}
    n = [1, 128, 129, 1024, 2048]
    one, product_us, two, eight, sixteen = one_product(n, 16384, 2048, **deep)
    assert (product_us, two, eight) == pytest.approx((one, one, one), rel=1e-2)
    assert sixteen == pytest.approx(one * 16 * 16 / H100["sms"], rel=1e-2)


def test_without_the_depth_of_a_tile() -> None:
    """Shared constants and ones fitted before the tile's depth existed give unchanged times."""
    without = {name: value for name, value in VALUES.items() if name != "depth_us"}
    features = arrays([1, 64, 512], **H100)
    features |= {"matrices": [(np.array([[8192.0]]), np.array([[4096.0]]), 1)]}
    for hypothesis in GEMM.hypotheses:
        time_us = latency_us(features, without, hypothesis)
        assert np.array_equal(time_us, latency_us(features, VALUES | {"depth_us": 0.0}, hypothesis))


FORMATS = st.sampled_from([0.53125, 0.5625, 1.0, 2.0, 4.0])
PRODUCTS = st.lists(
    st.tuples(
        st.integers(64, 30000),
        st.integers(64, 30000),
        st.integers(1, 3),
        st.sampled_from([None, math.nan, 64.0, 4096.0]),
        st.sampled_from([None, math.nan, 1.0, 3.0]),
    ),
    min_size=1,
    max_size=3,
)


@given(
    hypothesis=st.sampled_from(GEMM.hypotheses),
    values=constants(GEMM),
    products=PRODUCTS,
    m=st.integers(1, 5000),
    formats=st.tuples(FORMATS, FORMATS, FORMATS),
    phi=st.floats(1e7, 4e9),
    beta=st.floats(3e5, 8e6),
    sms=st.integers(20, 200),
)
def test_products_take_what_the_formula_says(
    *, hypothesis: str, values: dict[str, float], products: list[Any], m: int,
    formats: tuple[float, float, float], phi: float, beta: float, sms: int,
) -> None:  # fmt: skip
    """Compute, weight passes and depth overlap partly; rows move besides; a call has a fixed time.

    A rule's padded rows and passes replace the library's tile and its one pass.
    """
    stored, entering, leaving = formats
    facts = {
        "phi": phi, "beta": beta, "sms": sms, "weight_bytes": stored, "element_bytes": entering,
        "result_bytes": leaving,
    }  # fmt: skip
    features = arrays([m], **facts) | {"matrices": []}
    tile = min(int(hypothesis[5:]), 2 ** math.floor(math.log2(phi / beta * stored / 2)))
    expected = values["fixed_us"]
    reached = values["bandwidth_share"] * beta
    for number, (k, n, times, padded, passes) in enumerate(products):
        features["matrices"].append((np.array([[float(k)]]), np.array([[float(n)]]), times))
        rows, read = math.ceil(m / tile) * tile, 1.0
        if padded is not None:
            features[f"padded_{number}"] = np.array([[padded]])
            rows = rows if math.isnan(padded) else padded
        if passes is not None:
            features[f"passes_{number}"] = np.array([[passes]])
            read = read if math.isnan(passes) else passes
        waves = max(1.0, math.ceil(m / 128) * math.ceil(n / 128) / sms)
        parts = [
            2 * rows * k * n / (values["compute_share"] * phi),
            read * k * n * stored / reached,
            waves * k / 1000 * values["depth_us"],
        ]
        p = values["sharpness"]
        most = max(parts)
        core = most * sum((part / most) ** p for part in parts) ** (1 / p)
        expected += times * (core + m * (k * entering + n * leaving) / reached)
    time_us = latency_us(features, values, hypothesis)
    assert time_us.item() == pytest.approx(expected)
