"""The rules that this repository's log has on record."""

from functools import cache

from derive.questions import LOG
from nearfree.sources.language.rule import Rule
from nearfree.sources.record import recorded_extraction


@cache
def rules(package: str, version: str) -> dict[str, Rule]:
    """Return the recorded rules of a release, by name."""
    extraction = recorded_extraction(LOG, package, version)
    assert extraction is not None
    return extraction.by_name()
