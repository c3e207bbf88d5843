"""The state of a gated delta net: its work, counted by brute force."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs
from nearfree.core.modules.delta_net import delta_work
from nearfree.core.setting import Setting

QWEN = Setting(module="delta_net", backend="vllm", dtype="bfloat16", kv_dtype="float32", batch=3,
               heads=6, kv_heads=2, head_dim=4, value_dim=5, conv=4)  # fmt: skip


@given(st.integers(1, 12), st.integers(1, 8))
def test_a_state_is_read_once_and_written_at_each_position(n: int, batch: int) -> None:
    """One more position costs the bytes of a state and of its rows, the same for each request."""
    fewer, more_work = (
        delta_work(structs.replace(QWEN, batch=batch), positions, "") for positions in (n, n + 1)
    )
    mixed, values, state = 2 * 2 * 4 + 6 * 5, 6 * 5, 6 * 4 * 5
    assert more_work.bytes_compulsory - fewer.bytes_compulsory == batch * (
        4 * state + 2 * (4 * mixed + values)
    )
    at_first = delta_work(structs.replace(QWEN, batch=batch), 1, "").bytes_compulsory
    assert at_first == batch * (2 * 4 * state + 2 * ((2 * 3 + 3) * mixed + values))
    assert more_work.flop_logical == (n + 1) * delta_work(QWEN, 1, "").flop_logical * batch // 3


@settings(max_examples=20)
@given(st.integers(1, 5), st.integers(1, 6), st.integers(0, 99))
def test_seven_operations_an_element_are_what_the_rule_needs(
    keys: int, values: int, seed: int
) -> None:
    """The rule, computed and counted by element, gives the matrix form's state and output."""
    draw = np.random.default_rng(seed)
    state, key, query = draw.normal(size=(keys, values)), *draw.normal(size=(2, keys))
    value, decay, rate = draw.normal(size=values), 0.9, 0.3
    expected = decay * state
    expected = expected + rate * np.outer(key, value - expected.T @ key)
    operations, counted, output = 0, state.copy(), np.zeros(values)
    for column in range(values):
        prediction = 0.0
        for row in range(keys):
            counted[row, column] *= decay
            prediction += counted[row, column] * key[row]
            operations += 3
        error = rate * (value[column] - prediction)
        for row in range(keys):
            counted[row, column] += key[row] * error
            output[column] += counted[row, column] * query[row]
            operations += 4
    assert np.allclose(counted, expected)
    assert np.allclose(output, expected.T @ query)
    setting = structs.replace(QWEN, batch=1, heads=1, kv_heads=1, head_dim=keys, value_dim=values)
    convolution = 2 * 4 * (2 * keys + values)
    assert delta_work(setting, 1, "").flop_logical == operations + convolution
