"""How many positions a model's file allows: its keys, its scalings, and files that lie."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nearfree.decoders.keys import Keys
from nearfree.decoders.positions import Positions, allowed_positions

YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}
LONG = {"max_position_embeddings": 40960}


def allowed(**values: Any) -> Positions:
    """Return the positions that a config.json of these values allows."""
    return allowed_positions(Keys(Path("config.json"), values))


COMMAND_R = {"max_position_embeddings": 8192, "model_max_length": 131072}
LINEAR = {"type": "linear", "factor": 2}
BY_KIND = {"full_attention": YARN, "sliding_attention": YARN}


@pytest.mark.parametrize(
    ("values", "vllm", "earlier", "sglang"),
    [
        (LONG, 40960, 40960, 40960),
        (LONG | {"model_max_length": 8192}, 8192, 8192, 8192),
        (COMMAND_R, 131072, 131072, 131072),
        (LONG | {"model_max_length": 1e30}, 40960, 40960, 40960),
        (LONG | {"seq_length": 65536}, 40960, 40960, 65536),
        ({}, None, None, None),
        (LONG | {"rope_scaling": None}, 40960, 40960, 40960),
        (LONG | {"rope_scaling": YARN}, 40960, 131072, 40960),
        (LONG | {"rope_scaling": {"type": "yarn", "factor": 4}}, 40960, 163840, 163840),
        (LONG | {"rope_scaling": LINEAR}, 81920, 81920, 81920),
        (LONG | {"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, 40960, 40960, 40960),
        (LONG | {"rope_scaling": {"type": "longrope", "factor": 2}}, 40960, 40960, 81920),
        (LONG | {"rope_scaling": {"type": "default", "mrope_section": [1, 2]}}, *[40960] * 3),
        (LONG | {"rope_parameters": YARN}, 40960, 131072, 40960),
        (LONG | {"rope_parameters": BY_KIND}, 40960, 131072, 40960),
        (LONG | {"model_type": "gemma3_text", "rope_scaling": {"factor": 8.0}}, *[40960] * 3),
    ],
)
def test_positions_are_those_that_an_engine_allows(
    values: dict[str, Any], vllm: int | None, earlier: int | None, sglang: int | None
) -> None:
    """Each engine has its key, times the factor of a scaling whose positions are not scaled yet."""
    positions = allowed(**values)
    assert positions == Positions(vllm, earlier, sglang)
    assert positions.of("vllm", None) == positions.of("vllm", "0.30.0") == vllm
    assert positions.of("vllm", "0.29.0") == earlier
    assert positions.of("sglang", "0.5.23") == sglang
    assert positions.of("trtllm", None) == vllm


values_of_any_type = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=4,
)


@given(
    values_of_any_type,
    values_of_any_type,
    st.dictionaries(st.sampled_from(sorted(YARN)), values_of_any_type),
)
def test_what_is_no_size_counts_as_not_there(most: Any, kind: Any, scaling: Any) -> None:
    """No value of these keys ends a reading: it says a number above zero, or nothing."""
    positions = allowed(max_position_embeddings=most, model_type=kind, rope_scaling=scaling)
    assert all(number is None or number > 0 for number in positions)
