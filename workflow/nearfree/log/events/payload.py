"""An event: a CloudEvents envelope around a typed payload of one version."""

from typing import Any, ClassVar, Literal

from msgspec import Struct


class Payload(
    Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True, gc=False
):
    """The data of an event; `type_name` is its CloudEvents type, with the version at its end."""

    type_name: ClassVar[str]
    before: ClassVar["type[Payload] | None"] = None
    """The version before this one, which upcasts to it."""

    def upcast(self) -> "Payload":
        """Return the same in the next version of its type; the newest version returns itself."""
        return self


def versions_of(kind: type[Payload]) -> tuple[type[Payload], ...]:
    """Return every version of a type up to this one, the oldest first."""
    return (*(versions_of(kind.before) if kind.before else ()), kind)


class Event(
    Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False, tag_field="type"
):
    """The CloudEvents 1.0 envelope of a payload, with the chain's own extensions.

    Its class and `type_name` are of the version that lies on disk, `data` is of the newest one.
    """

    specversion: Literal["1.0"]
    id: str
    source: str
    time: str
    datacontenttype: Literal["application/json"]
    data: Any
    sequence: str
    prevhash: str
    hash: str

    @property
    def event_id(self) -> str:
        """The segment and the place in it, unique in a log."""
        return f"{self.source}#{self.id}"

    @property
    def type_name(self) -> str:
        """The CloudEvents type as it lies on disk."""
        return str(self.__struct_config__.tag)
