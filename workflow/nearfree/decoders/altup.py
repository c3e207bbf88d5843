"""Residual states that alternate, and a narrow branch beside each layer's attention (Gemma 3n).

AltUp keeps several states of a position. Before a layer all are predicted from one another, with
coefficients that a router makes; the layer runs on one; afterwards all are corrected by its output.
LAuReL adds two products of low rank to what enters the FFN.
Source: Gemma3nTextAltUp and Gemma3nTextLaurelBlock of transformers 5.23; vllm 0.33.0,
vllm/model_executor/models/gemma3n.py:71-226 and 655-720; sglang 0.5.23,
sglang/srt/models/gemma3n_causal.py:135-275.
"""

from collections.abc import Iterator
from typing import NamedTuple

from msgspec import Struct

from nearfree.core.protocols import Positive

LAUREL, LAUREL_OUTPUT = "LAuReL", "LAuReL output"
PROJECTIONS, ROUTERS = "AltUp projections", "AltUp routers"
PREDICTION, CORRECTION = "AltUp prediction coefficients", "AltUp correction coefficients"
"""The modules of a forward, in the order in which they first run in a layer."""


class AltUp(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The number of residual `states` of a position, and the `rank` of each layer's branch."""

    states: Positive
    rank: Positive


class AltUpProduct(NamedTuple):
    """A product with its role and how often a forward runs it; widths are in elements."""

    role: str
    times: int
    inputs: int
    outputs: int


def altup_products(
    altup: AltUp | None, d_model: int, layers: int, tp: int
) -> Iterator[AltUpProduct]:
    """Yield the products of one of `tp` ranks, none where layers have no such states.

    `altup` has the rank's part of the branch.

    Each further state is made by a projection of the embedding before the first layer, and leaves
    by one behind the last; both are sharded by their outputs. A router runs before and behind each
    layer; routers and coefficients are replicated on every rank.
    """
    if altup is None:
        return
    states = altup.states
    yield AltUpProduct(ROUTERS, 2 * layers, d_model, states)
    yield AltUpProduct(PREDICTION, layers, states, states**2)
    yield AltUpProduct(CORRECTION, layers, states, states)
    yield AltUpProduct(LAUREL, layers, d_model, altup.rank)
    yield AltUpProduct(LAUREL_OUTPUT, layers, altup.rank, d_model)
    if states > 1:
        yield AltUpProduct(PROJECTIONS, 2 * (states - 1), d_model, -(-d_model // tp))
