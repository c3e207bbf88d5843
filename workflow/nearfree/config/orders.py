"""A platform's whole work list as text, for a machine without the config and the workflow."""

from collections.abc import Iterator

import msgspec
from msgspec import Struct

from nearfree.core.plan import AskedPlan
from nearfree.core.protocols import Positive
from nearfree.core.setting import Name
from nearfree.errors import ConfigError


class Order(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One take to make: a line of JSON."""

    scope: Name
    stream: Name
    take: Positive
    device: str
    """cpu or cuda: which kind of device the platform is."""
    plan: AskedPlan
    names: tuple[str, ...] = ()
    """What the driver may call the platform's device; none where no document tells."""


def write_orders(orders: Iterator[Order]) -> str:
    """Return orders as JSON lines."""
    return "".join(f"{msgspec.json.encode(order).decode()}\n" for order in orders)


def read_orders(text: str, where: str) -> list[Order]:
    """Return the orders of a text; ConfigError names the line that is none."""
    found = []
    for number, line in enumerate(text.splitlines(), start=1):
        try:
            found.append(msgspec.json.decode(line, type=Order))
        except msgspec.MsgspecError as error:
            raise ConfigError(
                f"{where}, line {number} is no order: {error}",
                remedy="Give what `nearfree plan PLATFORM` prints",
            ) from error
    if not found:
        raise ConfigError(
            f"{where} holds no order", remedy="Give what `nearfree plan PLATFORM` prints"
        )
    return found
