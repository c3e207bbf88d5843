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
        """Return this payload in the next version of its type; the newest returns itself."""
        return self


def versions_of(kind: type[Payload]) -> tuple[type[Payload], ...]:
    """Return every version of an event type up to this one, oldest first."""
    return (*(versions_of(kind.before) if kind.before else ()), kind)


class Event(
    Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False, tag_field="type"
):
    """The CloudEvents 1.0 envelope of a payload, with the chain's own extensions.

    The class and `type_name` are those of the stored version; `data` is in the newest version.
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
        """The segment's name and the line number in it, unique in a log."""
        return f"{self.source}#{self.id}"

    @property
    def type_name(self) -> str:
        """The CloudEvents type as stored on disk."""
        return str(self.__struct_config__.tag)
