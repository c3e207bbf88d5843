"""A matrix of weights on a CPU, the passes over it that rows take, and where they change."""

from msgspec import Struct

from nearfree.log.events import Branch

TYPES = {
    each.lower(): each
    for each in ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "IQ4_NL", "Q2_K",
                 "Q3_K", "Q4_K", "Q5_K", "Q6_K")
}  # fmt: skip
"""Types of weights by the names that users have for them."""
Place = tuple[str, Branch]
"""A rule, and the branch of it that holds."""
CHOOSING = frozenset({"repack_rows", "tiled", "sgemm", "vector"})
"""Rules that say from how many rows on a way is taken."""


class ProductQuery(Struct, frozen=True, kw_only=True):
    """A matrix of weights on a CPU.

    `weight` is its type as users spell it, `flags` what the library is compiled for, `repack`
    whether weights may be kept in another order (`use_extra_bufts`), `threads` how many share a
    product.
    """

    weight: str
    columns: int
    depth: int
    flags: frozenset[str]
    threads: int = 1
    repack: bool = True


class Passes(Struct, frozen=True, kw_only=True):
    """Passes of one kind: `times` of them, each holding up to `holds` rows, `serves` in all.

    `windows` is how often they bring the weights into the form that they compute with, where that
    is not once a pass.
    """

    path: str
    kernel: str
    holds: int
    serves: int
    times: int
    places: tuple[Place, ...]
    windows: int | None = None

    @property
    def unpacked(self) -> int:
        """Times that the weights are unpacked."""
        return self.times if self.windows is None else self.windows

    def kind(self) -> tuple[str, str, int, int]:
        """Return what a step is a change of."""
        return self.path, self.kernel, self.holds, self.times


class Step(Struct, frozen=True, kw_only=True):
    """A number of rows at which passes are others than at one row less, and the rule that says so.

    `before` and `after` are the numbers of passes, `places` the rules of what is new, and the
    branch of each that holds.
    """

    rows: int
    rule: str
    path: str
    before: int
    after: int
    places: tuple[Place, ...]


def changed(before: tuple[Passes, ...], after: tuple[Passes, ...]) -> tuple[Passes, str]:
    """Return what is new, else what is gone, and the rule that says so.

    Of another way than before it is the rule that chooses the way.
    """
    old, new = ([each.kind() for each in some] for some in (before, after))
    first = next(
        (each for each in after if each.kind() not in old),
        next((each for each in before if each.kind() not in new), after[0]),
    )
    names = [name for name, _ in first.places]
    other = first.path not in {each.path for each in before}
    chosen = [name for name in names if other and name in CHOOSING]
    return first, (chosen or names)[0]
