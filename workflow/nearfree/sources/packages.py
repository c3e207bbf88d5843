"""The packages whose rules are read: one module each, with the interface of `PackageReader`."""

import re
from collections.abc import Mapping
from difflib import get_close_matches
from functools import lru_cache
from importlib import import_module
from typing import TYPE_CHECKING, Protocol, cast

from nearfree.backends.records import BACKENDS, BY_USERS_NAME
from nearfree.errors import SourceError
from nearfree.sources.attention import AttentionQuery, Point, RuleQuery, Tile
from nearfree.sources.language.rule import Rule

if TYPE_CHECKING:
    from nearfree.sources.language.reading import Mechanism, Reading

RULES = {backend.rules.package: backend.rules for backend in BACKENDS if backend.rules}
"""The rules of each package, by its PyPI name."""


class PackageReader(Protocol):
    """The interface of a reading module: the files that it needs, and its rules and mechanisms.

    Everything but `WANTED`, `readings` and `mechanisms` is for attention backends only.
    """

    WANTED: str
    FOLLOWING_RULES: Mapping[str, tuple[str, ...]]
    """The rules that take the answers of `rule_queries`' rules as inputs, each with the further
    facts of the query that it reads; MoE packages have none."""

    WINDOWS: bool
    """Whether the rules hold for calls with a window, too; a module without it counts as False."""

    def readings(self, files: Mapping[str, str]) -> "list[Reading]":
        """Return the specification of each rule of a release.

        Raises
        ------
        SourceError
            The files do not have the form of any known release.
        """

    def mechanisms(self, files: Mapping[str, str]) -> "list[Mechanism]":
        """Return the mechanisms: the lines that link the rules to the kernels."""

    def rule_queries(self, query: AttentionQuery, point: Point) -> tuple[RuleQuery, ...]:
        """Return the rules that read the point of an attention call, and their facts."""

    def tile(self, rules: Mapping[str, Rule], query: AttentionQuery, positions: int) -> Tile:
        """Return an attention backend's tile of the queries; MoE packages have none.

        Parameters
        ----------
        query
            The call and the device; all requests have the same number of positions.
        positions
            Query positions of each request.

        Raises
        ------
        EvidenceError
            A fact that a rule reads is missing, or the backend has no kernel for the call.
        """

    def notes(self, query: AttentionQuery) -> tuple[str, ...]:
        """Return the assumptions of an answer; most packages have none."""


def reader_module(package: str) -> str:
    """Return the name of the module that reads a package."""
    return f"nearfree.sources.backends.{RULES[package].reader}"


def reader(package: str) -> PackageReader:
    """Return the reader of a package."""
    return cast("PackageReader", import_module(reader_module(package)))


def on_cpu(package: str) -> bool:
    """Return whether a package's rules are about products on a CPU."""
    return any(
        backend.rules.package == package and backend.devices == ("cpu",)
        for backend in BACKENDS
        if backend.rules
    )


@lru_cache(maxsize=256)
def parse_release(text: str) -> tuple[str, str]:
    """Return package and version of a text like `vllm==0.20.2`.

    Raises
    ------
    SourceError
        It does not have that form, or the package is not read.
    """
    match = re.fullmatch(r"([A-Za-z0-9_.-]+)==([A-Za-z0-9_.+!-]{1,64})", text)
    if match is None:
        raise SourceError(
            f"{text!r} names no release", remedy="Write package==version, such as vllm==0.20.2"
        )
    return package_name(match[1]), plain_version(match[1], match[2])


def plain_version(package: str, text: str) -> str:
    """Return a version in packaging's normal form; raise SourceError if it is none."""
    from packaging.version import InvalidVersion, Version

    try:
        return str(Version(text))
    except InvalidVersion as error:
        raise SourceError(
            f"{text!r} is no version of {package}", remedy="Give one like 1.2.3"
        ) from error


def package_name(text: str) -> str:
    """Return a package's name in the index's spelling.

    Raises
    ------
    SourceError
        The package is not read; the error gives the nearest names.
    """
    canonical_name = re.sub(r"[-_.]+", "-", text).lower()
    rules = RULES.get(canonical_name) or (
        BY_USERS_NAME[canonical_name].rules if canonical_name in BY_USERS_NAME else None
    )
    if rules is None:
        nearest = get_close_matches(canonical_name[:80], RULES, n=3)
        remedy = f"Nearest are {', '.join(nearest)}" if nearest else f"Known are {', '.join(RULES)}"
        raise SourceError(f"rules of {text!r} are not read", remedy=remedy)
    return rules.package
