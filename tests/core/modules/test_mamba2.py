"""The state of a Mamba-2 mixer: its work, counted by brute force."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs
from nearfree.core.modules.delta_net import delta_work
from nearfree.core.modules.mamba2 import mamba2_work
from nearfree.core.setting import Setting

NEMOTRON = Setting(module="mamba2", backend="vllm", dtype="bfloat16", kv_dtype="float32", batch=3,
                   heads=6, kv_heads=2, head_dim=4, value_dim=5, conv=4)  # fmt: skip


@given(st.integers(1, 12), st.integers(1, 8))
def test_bytes_are_those_of_a_delta_net_of_equal_sizes(n: int, batch: int) -> None:
    """Its heads, groups, state size and head width take the place of a delta net's sizes."""
    mixer = structs.replace(NEMOTRON, batch=batch)
    delta_net = structs.replace(mixer, module="delta_net")
    assert (
        mamba2_work(mixer, n, "").bytes_compulsory == delta_work(delta_net, n, "").bytes_compulsory
    )
    mixed, state = 6 * 5 + 2 * 2 * 4, 6 * 4 * 5
    fewer, more_bytes = (
        mamba2_work(mixer, positions, "").bytes_compulsory for positions in (n, n + 1)
    )
    assert more_bytes - fewer == batch * (4 * state + 2 * (4 * mixed + 6 * 5))


@settings(max_examples=20)
@given(st.integers(1, 5), st.integers(1, 6), st.integers(0, 99))
def test_five_operations_an_element_are_what_the_recurrence_needs(
    width: int, states: int, seed: int
) -> None:
    """The recurrence, computed and counted by element, gives the matrix form's state and output."""
    draw = np.random.default_rng(seed)
    state, write_vector, read_vector = (
        draw.normal(size=(width, states)),
        *draw.normal(size=(2, states)),
    )
    added, decay, step = draw.normal(size=width), 0.9, 0.3
    expected = decay * state + np.outer(added, step * write_vector)
    operations, counted, output = 0, state.copy(), np.zeros(width)
    stepped = step * write_vector  # of a head, not of an element
    for row in range(width):
        for column in range(states):
            counted[row, column] *= decay
            counted[row, column] += added[row] * stepped[column]
            output[row] += counted[row, column] * read_vector[column]
            operations += 5
    assert np.allclose(counted, expected)
    assert np.allclose(output, expected @ read_vector)
    setting = structs.replace(
        NEMOTRON, batch=1, heads=1, kv_heads=1, head_dim=states, value_dim=width
    )
    convolution = 2 * 4 * (width + 2 * states)
    assert mamba2_work(setting, 1, "").flop_logical == operations + convolution
