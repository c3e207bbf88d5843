"""What is declared of a setting's field, beside its type."""

from collections.abc import Mapping
from typing import Any, Literal, get_args

from msgspec import NODEFAULT, Struct, inspect, structs


class Field(Struct, frozen=True):
    """What a setting's field is. It stands beside the field's type in Setting, and nowhere else.

    Columns of tables and curve files, labels, sort orders, docs and the page follow from it. The
    last four are filled in from the type. `role` says what the field is to a setting: `what` runs,
    an `axis` that studies vary, the `shape` of the module, or how a kernel is called.
    """

    role: Literal["what", "axis", "shape", "call"]
    meaning: str
    letter: str = ""
    """The paper's letter."""
    label: str = ""
    """What people call it, where its name does not say so."""
    unit: str = ""
    modules: tuple[str, ...] = ()
    """The modules that have it; where none is named, all of them."""
    needed: bool = False
    """Whether each of them must say it, but a whole model, whose file does."""
    spared: tuple[str, ...] = ()
    """The modules that have it in some of their settings alone, and so need not say it."""
    name: str = ""
    kind: type = str
    least: int = 1
    """The smallest value, of whole numbers."""
    default: Any = None

    @property
    def words(self) -> str:
        """What it is called, in words."""
        return self.label or self.name.replace("_", " ")

    @property
    def symbol(self) -> str:
        """What it is called beside its value."""
        return self.letter or self.words

    @property
    def optional(self) -> bool:
        """Whether it has a value without being given: a label leaves that value out."""
        return not self.needed and self.default not in (None, NODEFAULT)


_KINDS: Mapping[type, type] = {inspect.IntType: int, inspect.BoolType: bool}


def declared(setting: type[Struct], modules: tuple[str, ...]) -> dict[str, Field]:
    """Return the fields of a struct by name, in its order, each completed from its type.

    Parameters
    ----------
    setting
        The struct, each of whose fields has a Field beside its type.
    modules
        All modules there are.
    """
    found = {}
    for known in structs.fields(setting):
        (field,) = (note for note in get_args(known.type) if isinstance(note, Field))
        kind = inspect.type_info(known.type)
        if isinstance(kind, inspect.UnionType):
            (kind,) = (part for part in kind.types if not isinstance(part, inspect.NoneType))
        least = kind.ge if isinstance(kind, inspect.IntType) else None
        found[known.name] = structs.replace(
            field,
            name=known.name,
            modules=field.modules or modules,
            kind=_KINDS.get(type(kind), str),
            least=1 if least is None else int(least),
            default=known.default,
        )
    return found
