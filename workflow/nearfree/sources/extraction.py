"""All that is read of one release: where its files came from, its rules, its tuned files."""

from functools import cache as cache_forever
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from nearfree.errors import MOVED, SourceError
from nearfree.log.codebase import digest
from nearfree.log.events import RuleExtracted, SourceFetched, SourceMember, TunedIndexed
from nearfree.sources.fetching.cache import Cache
from nearfree.sources.language.rule import Rule
from nearfree.sources.packages import reader, reader_module

if TYPE_CHECKING:
    from nearfree.sources.fetching.source import Source


class Extraction(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one release says."""

    package: str
    version: str
    fetched: tuple[SourceFetched, ...]
    rules: tuple[RuleExtracted, ...]
    tuned: tuple[TunedIndexed, ...] = ()
    hash: str = ""

    def by_name(self) -> dict[str, Rule]:
        """Return the rules, ready to answer, by name."""
        return {rule.rule: Rule(rule) for rule in self.rules}

    def meanings(self) -> dict[str, str]:
        """Return the digest of what each rule answers, by name."""
        return {rule.rule: rule.meaning for rule in self.rules}


def extract(
    package: str, version: str, *, cache: Cache, offline: bool = False, tuned: bool = True
) -> Extraction:
    """Return what a release says, from the cache where this code read it before.

    Parameters
    ----------
    tuned
        Whether the index of tuned files is needed, too.

    Raises
    ------
    SourceError
        The release is not to be had, damaged, or of an unknown form; the message names it.
    """
    kept = {part: f"{package}-{version}-{part}-{_code(package)}" for part in ("all", "rules")}
    for name in kept.values() if not tuned else [kept["all"]]:
        known = cache.load(name, Extraction)
        if known is not None:
            return replace(known, hash="")
    try:
        if tuned:
            rules = extract(package, version, cache=cache, offline=offline, tuned=False)
            found = _with_tuned(rules, cache=cache, offline=offline)
        else:
            found = _extract(package, version, cache=cache, offline=offline)
    except SourceError as error:
        name = f"{package} {version}"
        what = error.what if error.what.startswith(name) else f"{name}: {error.what}"
        raise SourceError(what, remedy=error.remedy) from error
    cache.store(kept["all" if tuned else "rules"], found)
    return found


@cache_forever
def _code(package: str) -> str:
    """Return a digest of the code that reads a package: other code reads anew."""
    return digest("nearfree.sources.extraction", reader_module(package))


_READ: dict[tuple[str, tuple[SourceMember, ...]], list[RuleExtracted]] = {}
"""Rules by the files that they were read from: neighbouring releases often share all of them."""


_ODD = (StopIteration, RuntimeError, LookupError, ValueError, TypeError, AttributeError)
"""What a reader meets where a name or a part that it looks for is not there."""


def _rules(package: str, source: "Source") -> list[RuleExtracted]:
    from nearfree.sources.language.reading import read_rule, recorded

    key = (package, source.record.members)
    if key not in _READ:
        module, version = reader(package), source.record.version
        files = {path: source.text(path) for path in source.paths()}
        try:
            rules = [read_rule(each, package, version) for each in module.readings(files)]
            rules += [recorded(each, package, version) for each in module.mechanisms(files)]
        except _ODD as error:
            what = f"{type(error).__name__} {error}".strip()
            raise SourceError(
                f"its source is not of the known form: {what}", remedy=MOVED
            ) from error
        _READ[key] = rules
    return _READ[key]


def _extract(package: str, version: str, *, cache: Cache, offline: bool) -> Extraction:
    from nearfree.sources.fetching.fetch import fetch

    source = fetch(package, version, reader(package).WANTED, cache=cache, offline=offline)
    version = source.record.version
    rules = tuple(replace(each, version=version) for each in _rules(package, source))
    return Extraction(package=package, version=version, fetched=(source.record,), rules=rules)


def _with_tuned(found: Extraction, *, cache: Cache, offline: bool) -> Extraction:
    """Return what a release says with the index of its tuned files, if its package has any."""
    wanted = getattr(reader(found.package), "TUNED", None)
    if wanted is None:
        return found
    from nearfree.sources.fetching.fetch import fetch
    from nearfree.sources.tuned import index_tuned

    configs = fetch(found.package, found.version, wanted, cache=cache, offline=offline)
    files = {path: configs.raw(path) for path in configs.paths()}
    index = tuple(index_tuned(found.package, found.version, files))
    return replace(found, fetched=(*found.fetched, configs.record), tuned=index)
