"""Rotations: how far each pair of elements turns, against complex numbers."""

import math

import pytest
import torch
from nearfree.decoders.rope import Rope, Yarn
from nearfree.models.rotation import RotationTables, frequencies, rotate, rotation

PLAIN = Rope(theta=100.0, width=8)
FIRST, COUNT = 5, 3


def turned(states: torch.Tensor, rope: Rope) -> torch.Tensor:
    """Return states [..., COUNT, 8] as complex pairs, turned by their position's angles."""
    halves = (states[..., ::2], states[..., 1::2]) if rope.interleaved else states.chunk(2, -1)
    angles = torch.outer(torch.arange(FIRST, FIRST + COUNT).float(), frequencies(rope))
    return torch.complex(*halves) * torch.polar(torch.ones_like(angles), angles)


@pytest.mark.parametrize("rope", [PLAIN, Rope(theta=100.0, width=8, interleaved=True)], ids=str)
def test_pairs_are_turned(rope: Rope) -> None:
    """Halves or neighbours are a complex number's parts; the first parts come out first."""
    states = torch.randn(2, 4, COUNT, 8, generator=torch.Generator().manual_seed(1))
    out = rotate(states, rotation(rope, FIRST, COUNT, torch.float32, "cpu"))
    expected = turned(states, rope)
    assert torch.allclose(out, torch.cat((expected.real, expected.imag), -1), atol=1e-6)


def test_what_lies_beyond_stays() -> None:
    """Elements beyond the rotated width stay unchanged, as do all without a rotation."""
    states = torch.randn(1, 1, COUNT, 12, generator=torch.Generator().manual_seed(1))
    out = rotate(states, rotation(PLAIN, FIRST, COUNT, torch.float32, "cpu"))
    assert out[..., 8:].equal(states[..., 8:])
    assert not out[..., :8].equal(states[..., :8])
    assert rotate(states, None) is states


def test_a_divisor_and_still_pairs() -> None:
    """All frequencies are divided alike; pairs behind the turned ones do not turn."""
    plain = frequencies(PLAIN)
    assert plain.tolist() == pytest.approx([100.0 ** (-i / 4) for i in range(4)])
    divided = frequencies(Rope(theta=100.0, width=8, divisor=4.0))
    assert divided.tolist() == pytest.approx((plain / 4).tolist())
    some = frequencies(Rope(theta=100.0, width=8, turned=3))
    assert some.tolist() == pytest.approx([*plain[:3].tolist(), 0.0])


def test_yarn_keeps_the_fast_and_divides_the_slow() -> None:
    """Pairs up to the first are kept, from the last on divided; cosines are stretched."""
    yarn = Yarn(factor=8.0, first=1.0, last=3.0, stretch=1.5)
    rope = Rope(theta=100.0, width=8, yarn=yarn)
    plain, scaled = frequencies(PLAIN), frequencies(rope)
    shares = (scaled / plain).tolist()
    assert shares == pytest.approx([1.0, 1.0, (1 + 1 / 8) / 2, 1 / 8])
    table = rotation(rope, 0, 1, torch.float32, "cpu")
    assert table.cosines.tolist() == [[1.5] * 8]


def test_layers_that_turn_alike_have_one_table() -> None:
    """A rotation's table is made once; another base has another."""
    turns = RotationTables(FIRST, COUNT, torch.float32, "cpu")
    assert turns.table(PLAIN) is turns.table(Rope(theta=100.0, width=8))
    other = turns.table(Rope(theta=10.0, width=8))
    assert other is not None
    assert other is not turns.table(PLAIN)
    assert turns.table(None) is None
    assert float(other.truncated(1).cosines[0, 0]) == pytest.approx(math.cos(FIRST))
    assert len(other.truncated(1).sines) == 1
