"""What each kind of module declares: its record, which everything asks instead of its name."""

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from msgspec import Struct

from nearfree.core.modules.study import StudyBase
from nearfree.core.setting import FIELDS, Module, Setting
from nearfree.core.work import ExecutedWork
from nearfree.errors import EvidenceError


class Granularity(Struct, frozen=True, kw_only=True):
    """Rows that a kernel computes together: M_moe tokens of a block, M_attn positions of a tile.

    `rows` is +inf where nothing limits; `until` is tau, the last number of tokens (b N) with such
    a block, None for no limit. `place` says where that stands.
    """

    rows: float
    until: float | None = None
    place: str = ""


class Equation(Struct, frozen=True):
    """An equation as text, with its section in the paper."""

    text: str
    section: str


class Law(Protocol):
    """N_idle of a setting on a platform of balance rho (FLOP per byte), +inf where unbounded."""

    def __call__(self, setting: Setting, balance: float, *, extended: bool) -> float:
        """Return it in the paper's form, or extended to what that form leaves out."""


class Terms(Protocol):
    """The principle of a setting: its terms by name, of which the smallest is N_max."""

    def __call__(
        self, setting: Setting, balance: float, granularity: Granularity | None, *, extended: bool
    ) -> dict[str, float]:
        """Return them in the paper's form, or extended to what that form leaves out."""


class Work(Protocol):
    """What a forward over N positions executes."""

    def __call__(
        self, setting: Setting, n: int, basis: str, *, rows: int | None = None, group: int = 1
    ) -> ExecutedWork:
        """Return it for blocks or tiles of some rows, None where none is padded.

        `group` is how many query heads share a row axis; `basis` says where all this stands.
        """


class Laws(Struct, frozen=True, kw_only=True):
    """The paper's laws of a kind of module, as scalar functions.

    `needs` are the fields that a setting must have for any law, `idle_fields` and `term_fields`
    those that enter N_idle and the principle: questions that agree in them share their answer.
    `idle_place` and `principle_place` say where the paper states them.
    """

    needs: tuple[str, ...]
    idle_fields: tuple[str, ...]
    idle_compute: Law
    idle_term: str
    idle_place: str
    idle: Equation
    term_fields: tuple[str, ...]
    terms: Terms
    principle_place: str
    principle: Equation
    letter: str | None = None
    """The paper's letter for the kind's granularity; None where its principle asks for rho."""
    printed: Callable[[Setting, str | None], Granularity] | None = None
    """What the paper prints of it, by setting and kernel; EvidenceError where it prints nothing."""


class ModuleKind(Struct, frozen=True, kw_only=True):
    """A kind of module.

    `own` is the variable that its studies are about. `main` holds for the kinds that the paper
    speaks of by themselves, `has_cache` for those that read a KV cache, `routed` for those whose
    tokens go to experts. Which fields a setting of it has stands in `core.setting`.
    """

    name: Module
    title: str
    own: str
    study: type[StudyBase] | None = None
    work: Work | None = None
    laws: Laws | None = None
    question: Callable[..., Any] | None = None
    """What it asks the rules of releases, made from the columns `question_fields` of a question
    with the facts of its platform."""
    question_fields: tuple[str, ...] = ()
    main: bool = False
    has_cache: bool = False
    routed: bool = False

    @property
    def variable(self) -> str:
        """What the variable that its studies are about is called."""
        return FIELDS[self.own].words

    @property
    def letter(self) -> str:
        """The paper's letter for that variable."""
        return FIELDS[self.own].letter

    @property
    def granular(self) -> bool:
        """Whether its kernels compute blocks or tiles of rows, so that its work is a staircase."""
        return self.laws is not None and self.laws.letter is not None

    def executed(
        self, setting: Setting, n: int, basis: str, *, rows: int | None = None, group: int = 1
    ) -> ExecutedWork:
        """Return what a forward over N positions executes, as `work` counts it.

        Raises
        ------
        EvidenceError
            The kind is no single layer or call.
        """
        if self.work is None:
            raise EvidenceError(
                f"the work of {self.title} is that of its modules", remedy="Ask for each module"
            )
        return self.work(setting, n, basis, rows=rows, group=group)


class Smallest(Struct, frozen=True):
    """The smallest of a law's terms.

    `names` are all the terms that are the smallest, the first one first. `margin` is the next
    smallest over it, None without one or where nothing limits.
    """

    value: float
    names: tuple[str, ...]
    margin: float | None


def smallest(terms: Mapping[str, float]) -> Smallest:
    """Return the smallest of some terms, one at least; +inf is no limit (paper, sec. 4)."""
    value, *rest = sorted(terms.values())
    names = tuple(name for name, term in terms.items() if term == value)
    margin = rest[0] / value if rest and value != float("inf") else None
    return Smallest(value, names, margin)
