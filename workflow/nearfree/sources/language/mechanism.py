"""Mechanism evidence: the lines that make a rule's value matter to the kernel.

A tile size alone proves nothing; that the grid is a ceiling division by it does. Where such a
line is gone, the release takes a new kernel path, and that is reported.
"""

from dataclasses import dataclass

import msgspec

from nearfree.log.events import Branch, Quote, RuleExtracted
from nearfree.log.line import sha256


@dataclass(frozen=True)
class Mechanism:
    """One link from a rule to the kernel: what must hold, and the lines that say so, if any."""

    name: str
    says: str
    quotes: tuple[Quote, ...] = ()


def recorded(mechanism: Mechanism, package: str, version: str) -> RuleExtracted:
    """Return a mechanism as a rule without inputs: its value is what it says, or `absent`."""
    says = mechanism.says if mechanism.quotes else "absent"
    return RuleExtracted(
        package=package,
        version=version,
        rule=f"mechanism_{mechanism.name}",
        symbol=mechanism.name,
        inputs=(),
        branches=(Branch(when=(), value=repr(says), quotes=mechanism.quotes),),
        meaning=sha256(msgspec.json.encode([mechanism.name, says]))[:16],
        points=0,
    )
