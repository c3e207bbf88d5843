"""The record of a kind of module: its study, work and laws, looked up in place of its name."""

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from msgspec import Struct

from nearfree.core.modules.study import StudyBase
from nearfree.core.setting import FIELDS, Module, Setting
from nearfree.core.work import ExecutedWork
from nearfree.errors import EvidenceError


class Granularity(Struct, frozen=True, kw_only=True):
    """Rows that a kernel computes together: M_moe tokens per block, M_attn positions per tile.

    `rows` is +inf if nothing limits it. `until` is tau, the last number of tokens (b N) with this
    block, None for no limit. `place` names the source of the numbers.
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
        """Return N_idle in the paper's form, or `extended` to what that form leaves out."""


class Terms(Protocol):
    """The principle of a setting: its terms by name, of which the smallest is N_max."""

    def __call__(
        self, setting: Setting, balance: float, granularity: Granularity | None, *, extended: bool
    ) -> dict[str, float]:
        """Return the terms in the paper's form, or `extended` to what that form leaves out."""


class PaddedWork(Protocol):
    """The work that a forward over N positions executes in blocks or tiles of rows."""

    def __call__(
        self, setting: Setting, n: int, basis: str, *, rows: int | None = None, group: int = 1
    ) -> ExecutedWork:
        """Return the work for blocks or tiles of `rows` rows; None for no padding.

        `group` is the number of query heads that share a row axis; `basis` names the source of the
        rows.
        """


class Laws(Struct, frozen=True, kw_only=True):
    """The paper's laws of a kind of module, as scalar functions.

    `needs` are the fields that a setting must have for any law. `idle_fields` and `term_fields` are
    those that enter N_idle and the principle: settings that agree in them share the result.
    `idle_place` and `principle_place` are the sections of the paper that state the laws.
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
    """The paper's letter for the kind's granularity; None if its principle needs rho instead."""
    printed: Callable[[Setting, str | None], Granularity] | None = None
    """The granularity that the paper prints, by setting and kernel; EvidenceError if none."""


class ModuleKind(Struct, frozen=True, kw_only=True):
    """A kind of module.

    `own` is the field that its studies mainly vary. `main` is true for the kinds that the paper
    treats by themselves, `has_cache` for those that read a KV cache, `routed` for those whose
    tokens go to experts. `core.setting` declares the fields of its settings.
    """

    name: Module
    title: str
    several: str = ""
    """The name of several of them; the title with an s if empty."""
    own: str
    study: type[StudyBase] | None = None
    work: Callable[[Setting, int, str], ExecutedWork] | None = None
    """The work of a forward over N positions whose kernels pad no row, and its basis."""
    padded_work: PaddedWork | None = None
    laws: Laws | None = None
    question: type[Any] | None = None
    """The question to the rules of releases, with columns of a setting and its platform's facts."""
    knobs: tuple[str, ...] = ()
    """What moves the boundary where it limits a model, the strongest first; those of a matrix
    product if empty."""
    main: bool = False
    has_cache: bool = False
    routed: bool = False

    @property
    def plural(self) -> str:
        """The name of several of them."""
        return self.several or f"{self.title}s"

    @property
    def variable(self) -> str:
        """The name of the field `own` in words."""
        return FIELDS[self.own].words

    @property
    def letter(self) -> str:
        """The paper's letter for the field `own`."""
        return FIELDS[self.own].letter

    @property
    def question_fields(self) -> tuple[str, ...]:
        """The columns that its question is made from."""
        return getattr(self.question, "__struct_fields__", ())

    @property
    def granular(self) -> bool:
        """Whether its kernels compute blocks or tiles of rows, so that its work rises in steps."""
        return self.laws is not None and self.laws.letter is not None

    def executed(
        self, setting: Setting, n: int, basis: str, *, rows: int | None = None, group: int = 1
    ) -> ExecutedWork:
        """Return the work of a forward over N positions, as `work` or `padded_work` counts it.

        Raises
        ------
        EvidenceError
            The kind is a whole forward, not a single layer or call.
        """
        if self.padded_work is not None:
            return self.padded_work(setting, n, basis, rows=rows, group=group)
        if self.work is None:
            raise EvidenceError(
                f"the work of {self.title} is that of its modules", remedy="Ask for each module"
            )
        return self.work(setting, n, basis)


class SmallestTerm(Struct, frozen=True):
    """The smallest of a law's terms.

    `names` are all terms with the smallest value, in order. `margin` is the next smallest value
    over the smallest; None without another value, or if nothing limits.
    """

    value: float
    names: tuple[str, ...]
    margin: float | None


def smallest_term(terms: Mapping[str, float]) -> SmallestTerm:
    """Return the smallest of one or more terms; +inf means no limit (paper, sec. 4)."""
    value, *others = sorted(terms.values())
    names = tuple(name for name, term in terms.items() if term == value)
    margin = others[0] / value if others and value != float("inf") else None
    return SmallestTerm(value, names, margin)
