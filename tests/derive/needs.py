"""The memory needs of a small deployment."""

from nearfree.decoders.layouts.pieces import CacheLayer
from nearfree.decoders.ranks.holding import Heads
from nearfree.decoders.stored.parts import Weights
from nearfree.derive.memory import (
    Needs,
)

NEEDS = Needs(
    weights=(Weights("ffn", 15 * 10**9, 30e9, "cut", tuple(range(4))),),
    cache=(
        CacheLayer(layers=4, elements=256, heads=2),
        CacheLayer(layers=4, elements=256, heads=2, window=512),
    ),
    layers=4,
    heads=Heads(4, 2),
    experts=1,
    vocabulary=1000,
    cache_element=2.0,
    plain_element=2.0,
    hidden=4e4,
    activations=6e4,
    logits=1e6,
)
