"""Which keys N new positions see over a context of L."""

from msgspec import Struct

from nearfree.core.setting import Mask
from nearfree.errors import EvidenceError


class AttentionMask(Struct, frozen=True):
    """New positions from L on, under one mask.

    A window hides keys that lie further back than it reaches: a position sees the last `window` up
    to its own, all of them if None.
    """

    mask: Mask
    context: int
    window: int | None = None

    def __post_init__(self) -> None:
        if self.window is not None and not self.causal:
            raise EvidenceError(
                "a block of positions that see each other is not run with a window",
                remedy="Choose the causal mask, or a model without a window",
            )

    @property
    def causal(self) -> bool:
        """Whether a new position sees none after it."""
        return self.mask == "causal"

    @property
    def first(self) -> int:
        """The first key that any new position sees."""
        return 0 if self.window is None else max(0, self.context + 1 - self.window)
