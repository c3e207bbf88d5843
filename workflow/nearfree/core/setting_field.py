"""The declaration of a setting's field, given beside its type."""

from collections.abc import Mapping
from typing import Any, Literal, get_args

from msgspec import NODEFAULT, Struct, inspect, structs


class Field(Struct, frozen=True):
    """A field of a setting, declared beside the field's type in `Setting`, and nowhere else.

    Columns of tables and curve files, labels, sort orders, docs and the page follow from it. The
    last four are filled in from the type. `role` is the field's part in a setting: `what` runs, an
    `axis` that studies vary, the `shape` of the module, or how a kernel is called (`call`).
    """

    role: Literal["what", "axis", "shape", "call"]
    meaning: str
    letter: str = ""
    """The paper's letter."""
    label: str = ""
    """The field's usual name, if it differs from the field's name."""
    unit: str = ""
    modules: tuple[str, ...] = ()
    """The modules that have the field; all modules if empty."""
    needed: bool = False
    """Whether these modules must give it; a whole model need not, since its file does."""
    spared: tuple[str, ...] = ()
    """The modules that have it in some settings only, and so need not give it."""
    name: str = ""
    kind: type = str
    least: int = 1
    """The smallest value, for integers."""
    default: Any = None

    @property
    def words(self) -> str:
        """The field's name in words."""
        return self.label or self.name.replace("_", " ")

    @property
    def symbol(self) -> str:
        """The symbol to write beside a value: the letter, or else the name in words."""
        return self.letter or self.words

    @property
    def optional(self) -> bool:
        """Whether it has a default value, which labels leave out."""
        return not self.needed and self.default not in (None, NODEFAULT)


_KINDS: Mapping[type, type] = {inspect.IntType: int, inspect.BoolType: bool}


def declared_fields(setting: type[Struct], modules: tuple[str, ...]) -> dict[str, Field]:
    """Return the fields of a struct by name, in its order, each completed from its type."""
    fields = {}
    for struct_field in structs.fields(setting):
        (field,) = (
            annotation
            for annotation in get_args(struct_field.type)
            if isinstance(annotation, Field)
        )
        kind = inspect.type_info(struct_field.type)
        if isinstance(kind, inspect.UnionType):
            (kind,) = (member for member in kind.types if not isinstance(member, inspect.NoneType))
        least = kind.ge if isinstance(kind, inspect.IntType) else None
        fields[struct_field.name] = structs.replace(
            field,
            name=struct_field.name,
            modules=field.modules or modules,
            kind=_KINDS.get(type(kind), str),
            least=1 if least is None else int(least),
            default=struct_field.default,
        )
    return fields
