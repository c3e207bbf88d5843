"""The modules that are drawn, each with the variable that its studies are about."""

from msgspec import Struct

from nearfree.core.setting import FIELDS


class DrawnModule(Struct, frozen=True, kw_only=True):
    """A module, its own variable, and how titles call both."""

    name: str
    title: str
    own: str
    """The column of its own variable."""
    padded: bool
    """Whether its kernels pad rows to a block or tile, so that its work is a staircase."""

    @property
    def variable(self) -> str:
        """What its own variable is called."""
        return FIELDS[self.own].words

    @property
    def letter(self) -> str:
        """The paper's letter for that variable."""
        return FIELDS[self.own].letter


MODULES = (
    DrawnModule(name="dense_ffn", title="dense FFN", own="batch", padded=False),
    DrawnModule(name="moe_ffn", title="MoE FFN", own="top_k", padded=True),
    DrawnModule(name="attention", title="attention", own="context", padded=True),
)
MODEL = DrawnModule(name="model", title="whole models", own="context", padded=False)
"""A whole forward, which has figures of its own."""
