"""The modules that are drawn, each with the variable that its studies are about."""

from msgspec import Struct


class DrawnModule(Struct, frozen=True, kw_only=True):
    """A module, its own variable, and how titles call both."""

    name: str
    title: str
    own: str
    """The column of its own variable."""
    variable: str
    """What that variable is called."""
    letter: str
    """The paper's letter for that variable."""
    padded: bool
    """Whether its kernels pad rows to a block or tile, so that its work is a staircase."""


MODULES = (
    DrawnModule(
        name="dense_ffn", title="dense FFN", own="batch", variable="batch", letter="b", padded=False
    ),
    DrawnModule(
        name="moe_ffn",
        title="MoE FFN",
        own="top_k",
        variable="experts a token",
        letter="k",
        padded=True,
    ),
    DrawnModule(
        name="attention",
        title="attention",
        own="context",
        variable="context",
        letter="L",
        padded=True,
    ),
)
MODEL = DrawnModule(
    name="model",
    title="whole models",
    own="context",
    variable="context",
    letter="L",
    padded=False,
)
"""A whole forward, which has figures of its own."""
