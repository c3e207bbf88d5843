"""The laws of a dense FFN against the paper's numbers."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nearfree.core.modules import dense_ffn
from nearfree.core.modules.dense_ffn import IDLE, principle_terms
from nearfree.core.precision import DTYPES, ELEMENT_BYTES, Dtype
from nearfree.core.setting import Setting
from nearfree.units import balance_flop_per_byte

DTYPE: dict[float, Dtype] = {ELEMENT_BYTES[dtype]: dtype for dtype in DTYPES}


def ffn(batch: int, element_bytes: float) -> Setting:
    """Return a dense FFN setting with `element_bytes` bytes an element."""
    return Setting(module="dense_ffn", backend="", dtype=DTYPE[element_bytes], batch=batch)


def idle_compute(balance: float, batch: int, element_bytes: float) -> float:
    """Return N_idle as a number."""
    return dense_ffn.idle_compute(ffn(batch, element_bytes), balance)


def principle(balance: float, batch: int, element_bytes: float) -> float:
    """Return the principle's only term."""
    return principle_terms(ffn(batch, element_bytes), balance)[IDLE]


def arithmetic_intensity(batch: int, n: float, element_bytes: float) -> float:
    """Return the FLOP of two products over the bytes of their weights, in FLOP per byte."""
    d_model, d_ff = 4096, 9216
    return 2 * 2 * batch * n * d_model * d_ff / (2 * d_model * d_ff * element_bytes)


LAWS = [idle_compute, principle]
balances = st.floats(0.1, 2000.0)
batches = st.integers(1, 4096)
widths = st.sampled_from(sorted(set(ELEMENT_BYTES.values())))
Law = Callable[..., Any]


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize(
    ("batch", "n_idle"), [(1, 37.0), (2, 18.5), (4, 9.25), (8, 4.625), (16, 2.3125), (32, 1.15625)]
)
def test_h20_has_the_papers_n_idle(law: Law, batch: int, n_idle: float) -> None:
    """On H20 with 16-bit weights N_idle is rho / b, with rho = 37."""
    assert law(37.0, batch, 2) == n_idle


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize(
    ("peak", "bandwidth", "n_idle"),
    [(148.0, 4000.0, 37.0), (312.0, 2039.0, 153.0), (989.0, 3350.0, 295.2)],
)
def test_one_position_on_each_platform(
    law: Law, peak: float, bandwidth: float, n_idle: float
) -> None:
    """From the datasheets of H20, A800 and H800 the law gives what the paper prints for b = 1."""
    assert round(law(balance_flop_per_byte(peak, bandwidth), 1, 2), 1) == n_idle


@given(balances, batches, widths)
def test_intensity_meets_the_balance_point(rho: float, batch: int, element_bytes: float) -> None:
    """At N_idle the arithmetic intensity is the balance point."""
    n = idle_compute(rho, batch, element_bytes)
    assert arithmetic_intensity(batch, n, element_bytes) == pytest.approx(rho)


@pytest.mark.parametrize("law", LAWS)
@given(rho=balances, batch=batches, element_bytes=widths)
def test_tokens_at_the_boundary_are_the_same_for_every_batch(
    law: Law, rho: float, batch: int, element_bytes: float
) -> None:
    """N_idle times b is constant: what counts is the tokens of a forward."""
    assert law(rho, batch, element_bytes) * batch == pytest.approx(law(rho, 1, element_bytes))


@pytest.mark.parametrize("law", LAWS)
@given(rho=balances, batch=batches, factor=st.sampled_from([0.5, 2.0, 3.0]))
def test_the_law_is_proportional(law: Law, rho: float, batch: int, factor: float) -> None:
    """N_idle is proportional to rho and to the bytes of an element."""
    n_idle = law(rho, batch, 2)
    assert law(rho * factor, batch, 2) == pytest.approx(n_idle * factor)
    assert law(rho, batch, 4) == pytest.approx(2 * n_idle)


@given(balances, batches, widths)
def test_the_principle_of_a_dense_ffn_is_idle_compute(
    rho: float, batch: int, element_bytes: float
) -> None:
    """For a dense FFN by itself both laws give the same N."""
    assert principle(rho, batch, element_bytes) == idle_compute(rho, batch, element_bytes)
