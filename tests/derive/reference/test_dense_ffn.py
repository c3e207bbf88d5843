"""A Dense FFN is answered as the sum of its products."""

import numpy as np
import pytest

from derive.reference.made import (
    by_depth,
    products,
    reference,
)
from derive.reference.products import OURS, form_of, question_with, times_of
from derive.work_model.forms import DENSE

FFN = {**DENSE, "backend": "vllm", "d_model": 4096, "d_ff": 6144, "batch": 8, "platform": "h100",
       "backend_version": "1.0"}  # fmt: skip


@pytest.mark.parametrize("gated", [True, False])
def test_a_dense_ffn_is_the_sum_of_its_products(*, gated: bool) -> None:
    """Each product is answered as if asked alone; gate and up are one product of both widths."""
    up_to = 12288 if gated else 6144
    shapes = ((4096, up_to), (6144, 4096))
    widths = (4096, 6144, 8192, 12288)
    known = reference(
        *(product for width in widths for product in products(d_ff=width)), bent=by_depth
    )
    total = times_of(known, {**FFN, "gated": gated})
    up, down = (
        times_of(known, question_with(d_model=depth, d_ff=width, kernel=None))
        for depth, width in shapes
    )
    assert total.latency_us == pytest.approx(up.latency_us + down.latency_us)
    assert total.regime == up.regime == down.regime == ["R3"]
    assert f"nearest 6144x4096 of 1.0, 4096x{up_to} of 1.0, " in total.texts()[0]


@pytest.mark.parametrize(
    ("width", "regime"), [(6144, "R3"), (8192, "R2")], ids=["both products", "one alone"]
)
def test_a_dense_ffn_was_measured_where_all_its_products_were(width: int, regime: str) -> None:
    """If one of its products was not measured, the module is a new shape."""
    other = products(d_ff=width, depths=(4096, 5120))
    known = reference(*products(d_ff=4096, depths=(4096, 6144)), *other)
    assert times_of(known, {**FFN, "gated": False}).regime == [regime]


def test_a_dense_ffn_of_strangers_is_the_sum_by_constants() -> None:
    """In regime R0 a module of several products has no residual either."""
    question = {**FFN, "platform": "b200", "gated": False}
    times = times_of(OURS, question)
    assert times.regime == ["R0"]
    halves = [
        [form_of(OURS, name, question_with(platform="b200", d_model=depth, d_ff=width))
         for depth, width in ((4096, 6144), (6144, 4096))]
        for name in ("a100", "h100")
    ]  # fmt: skip
    logs = [np.log(sum(half)) for half in halves]
    assert times.latency_us == pytest.approx(np.exp(np.mean(logs, axis=0)))
