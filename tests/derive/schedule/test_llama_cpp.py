"""The cost array for llama.cpp, against the documented form alone."""

import math
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nearfree.derive.schedule.engines import llama_cpp_option
from nearfree.errors import ConfigError

FORM = re.compile(r'export GGML_BATCH_COSTS="(1(?:,\d+(?:\.\d+)?)*)"')


@given(st.lists(st.floats(0.01, 1000), max_size=80))
def test_the_array_is_the_cost_of_a_token(ratios: list[float]) -> None:
    """The N-th number is T(N) / (N T(1)), in plain decimals, the first one 1."""
    curve = {1: 1.0} | dict(enumerate(ratios, 2))
    found = FORM.fullmatch(llama_cpp_option(curve).text)
    assert found
    costs = [float(each) for each in found[1].split(",")]
    assert costs == pytest.approx([curve[n] / n for n in sorted(curve)], abs=5.1e-7)


def test_a_free_forward_is_as_in_the_thread() -> None:
    """Where N positions cost what one does, a token costs 1 / N."""
    option = llama_cpp_option({4: 1.0, 1: 1.0, 3: 1.0, 2: 1.0})
    assert option.text == 'export GGML_BATCH_COSTS="1,0.5,0.333333,0.25"'
    assert not option.parsers


@pytest.mark.parametrize(
    ("curve", "says"),
    [
        ({}, "does not begin"),
        ({1: 1.0, 2: 1.0, 4: 1.0}, "no N = 3"),
        ({1: 1.0, 2: math.nan}, "nan for T"),
        ({1: 1.0, 2: 1e-9}, "at N = 2 is below"),
        (dict.fromkeys(range(1, 5000), 1.0), "has 4999 N"),
    ],
)
def test_a_curve_is_refused(curve: dict[Any, Any], says: str) -> None:
    """An array has no gaps: a curve that leaves an N out is refused, as is one of no latencies."""
    with pytest.raises(ConfigError, match=says):
        llama_cpp_option(curve)
