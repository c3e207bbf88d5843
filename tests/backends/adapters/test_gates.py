"""Gates of FFNs, element by element."""

import math

import pytest
import torch
from nearfree.backends.adapters.gates import clamped, gelu_tanh, silu

GATE, UP = [-9.0, -1.5, 0.0, 0.4, 8.0], [0.3, -9.0, 2.0, 9.0, -0.7]
HIDDEN = torch.tensor([*GATE, *UP])


def sigmoid(x: float) -> float:
    """Return 1 / (1 + e^-x)."""
    return 1 / (1 + math.exp(-x))


def test_silu_is_the_gate_by_its_sigmoid() -> None:
    """G sigmoid(g) up."""
    expected = [g * sigmoid(g) * up for g, up in zip(GATE, UP, strict=True)]
    assert silu(HIDDEN).tolist() == pytest.approx(expected, abs=1e-6)


def test_gelu_is_that_by_tanh() -> None:
    """G / 2 (1 + tanh(sqrt(2 / pi) (g + 0.044715 g^3))) up."""
    inner = [math.tanh((2 / math.pi) ** 0.5 * (g + 0.044715 * g**3)) for g in GATE]
    expected = [g / 2 * (1 + t) * up for g, t, up in zip(GATE, inner, UP, strict=True)]
    assert gelu_tanh(HIDDEN).tolist() == pytest.approx(expected, abs=1e-5)


def test_a_clamped_gate_has_limits() -> None:
    """The gate is at most 7, up within 7 and one more: g sigmoid(1.702 g) (up + 1)."""
    expected = []
    for g, up in zip(GATE, UP, strict=True):
        limited_gate = min(g, 7.0)
        expected.append(
            limited_gate * sigmoid(1.702 * limited_gate) * (max(min(up, 7.0), -7.0) + 1)
        )
    assert clamped(HIDDEN, 1.702, 7.0).tolist() == pytest.approx(expected, abs=1e-5)
