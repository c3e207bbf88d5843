"""A matrix of weights on a CPU, the passes over it, and the numbers of rows where they change."""

from msgspec import Struct

from nearfree.log.events import Branch

TYPES = {
    name.lower(): name
    for name in ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "IQ4_NL", "Q2_K",
                 "Q3_K", "Q4_K", "Q5_K", "Q6_K")
}  # fmt: skip
"""Types of weights, by their names in lower case."""
RuleBranch = tuple[str, Branch]
"""A rule's name, and its branch that applies."""
CHOOSING = frozenset({"repack_rows", "tiled", "sgemm", "vector"})
"""Rules that set the number of rows from which a path is taken."""


class ProductQuery(Struct, frozen=True, kw_only=True):
    """A matrix of weights on a CPU.

    `weight` is its type as users spell it, `flags` the CPU flags that the library is compiled for,
    `repack` whether weights may be repacked (`use_extra_bufts`), `threads` the number of threads
    that share a product.
    """

    weight: str
    columns: int
    depth: int
    flags: frozenset[str]
    threads: int = 1
    repack: bool = True


class Passes(Struct, frozen=True, kw_only=True):
    """Passes of one kind: `times` of them, each holding up to `holds` rows, `serves` in total.

    `windows` is the number of times that they unpack the weights, if that is not once per pass.
    """

    path: str
    kernel: str
    holds: int
    serves: int
    times: int
    places: tuple[RuleBranch, ...]
    windows: int | None = None

    @property
    def unpacked(self) -> int:
        """The number of times that the weights are unpacked."""
        return self.times if self.windows is None else self.windows

    def kind(self) -> tuple[str, str, int, int]:
        """Return the values whose change is a step."""
        return self.path, self.kernel, self.holds, self.times


class Step(Struct, frozen=True, kw_only=True):
    """A number of rows at which the passes differ from those of one row less, and its rule.

    `before` and `after` are the numbers of passes; `places` are the rules of the new passes, each
    with its branch that applies.
    """

    rows: int
    rule: str
    path: str
    before: int
    after: int
    places: tuple[RuleBranch, ...]


def first_change(before: tuple[Passes, ...], after: tuple[Passes, ...]) -> tuple[Passes, str]:
    """Return the first new kind of passes, else the first dropped one, and the rule that decides.

    If the path changes, that is the rule that chooses the path.
    """
    kinds_before, kinds_after = ([item.kind() for item in passes] for passes in (before, after))
    subject = next(
        (item for item in after if item.kind() not in kinds_before),
        next((item for item in before if item.kind() not in kinds_after), after[0]),
    )
    names = [name for name, _ in subject.places]
    is_new_path = subject.path not in {item.path for item in before}
    choosing = [name for name in names if is_new_path and name in CHOOSING]
    return subject, (choosing or names)[0]
