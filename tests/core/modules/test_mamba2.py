"""The state of a Mamba-2 mixer: its work counted by brute force, and what the recurrence needs."""

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
def test_it_moves_what_a_delta_net_of_its_sizes_moves(n: int, batch: int) -> None:
    """Its heads, groups, states and heads' widths are values, keys, and the widths of both."""
    own = structs.replace(NEMOTRON, batch=batch)
    other = structs.replace(own, module="delta_net")
    assert mamba2_work(own, n, "").bytes_compulsory == delta_work(other, n, "").bytes_compulsory
    mixed, state = 6 * 5 + 2 * 2 * 4, 6 * 4 * 5
    one, more = (mamba2_work(own, each, "").bytes_compulsory for each in (n, n + 1))
    assert more - one == batch * (4 * state + 2 * (4 * mixed + 6 * 5))


@settings(max_examples=20)
@given(st.integers(1, 5), st.integers(1, 6), st.integers(0, 99))
def test_five_operations_an_element_are_what_the_recurrence_needs(
    width: int, states: int, seed: int
) -> None:
    """The recurrence with its operations counted one by one is that of the matrix form."""
    draw = np.random.default_rng(seed)
    state, made, taken = draw.normal(size=(width, states)), *draw.normal(size=(2, states))
    added, decay, step = draw.normal(size=width), 0.9, 0.3
    wanted = decay * state + np.outer(added, step * made)
    operations, found, read = 0, state.copy(), np.zeros(width)
    stepped = step * made  # of a head, not of an element
    for row in range(width):
        for column in range(states):
            found[row, column] *= decay
            found[row, column] += added[row] * stepped[column]
            read[row] += found[row, column] * taken[column]
            operations += 5
    assert np.allclose(found, wanted)
    assert np.allclose(read, wanted @ taken)
    alone = structs.replace(
        NEMOTRON, batch=1, heads=1, kv_heads=1, head_dim=states, value_dim=width
    )
    convolution = 2 * 4 * (width + 2 * states)
    assert mamba2_work(alone, 1, "").flop_logical == operations + convolution
