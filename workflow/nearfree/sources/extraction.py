"""Everything that is read of one release: the origin of its files, its rules, its tuned files."""

from functools import cache as cache_forever
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from nearfree.errors import MovedError, SourceError
from nearfree.log.codebase import digest
from nearfree.log.events import RuleExtracted, SourceFetched, SourceMember, TunedIndexed
from nearfree.sources.fetching.cache import Cache
from nearfree.sources.language.rule import Rule
from nearfree.sources.packages import reader, reader_module

if TYPE_CHECKING:
    from nearfree.sources.fetching.cache import Source


class Extraction(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The rules and tuned files of one release."""

    package: str
    version: str
    fetched: tuple[SourceFetched, ...]
    rules: tuple[RuleExtracted, ...]
    tuned: tuple[TunedIndexed, ...] = ()
    hash: str = ""

    def by_name(self) -> dict[str, Rule]:
        """Return the rules as evaluable objects, by name."""
        return {rule.rule: Rule(rule) for rule in self.rules}

    def meanings(self) -> dict[str, str]:
        """Return the digest of each rule's meaning, by name."""
        return {rule.rule: rule.meaning for rule in self.rules}


def extract(
    package: str, version: str, *, cache: Cache, offline: bool = False, tuned: bool = True
) -> Extraction:
    """Return a release's extraction, from the cache if the same code read it before.

    `tuned` says whether the index of tuned files is needed, too.

    Raises
    ------
    SourceError
        The release is not available, damaged, or of an unknown form; the message names it.
    """
    cache_names = {
        part: f"{package}-{version}-{part}-{_code_digest(package)}" for part in ("all", "rules")
    }
    for cache_name in cache_names.values() if not tuned else [cache_names["all"]]:
        cached = cache.load(cache_name, Extraction)
        if cached is not None:
            return replace(cached, hash="")
    try:
        if tuned:
            rules = extract(package, version, cache=cache, offline=offline, tuned=False)
            extraction = _with_tuned(rules, cache=cache, offline=offline)
        else:
            extraction = _extract(package, version, cache=cache, offline=offline)
    except SourceError as error:
        release = f"{package} {version}"
        message = error.what if error.what.startswith(release) else f"{release}: {error.what}"
        raise SourceError(message, remedy=error.remedy) from error
    cache.store(cache_names["all" if tuned else "rules"], extraction)
    return extraction


@cache_forever
def _code_digest(package: str) -> str:
    """Return a digest of the code that reads a package: changed code reads again."""
    return digest("nearfree.sources.extraction", reader_module(package))


_RULES_BY_FILES: dict[tuple[str, tuple[SourceMember, ...]], list[RuleExtracted]] = {}
"""Rules by the files that they were read from: neighbouring releases often share all files."""


_READER_ERRORS = (StopIteration, RuntimeError, LookupError, ValueError, TypeError, AttributeError)
"""Exceptions of a reader that does not find a name or a part."""


def _rules(package: str, source: "Source") -> list[RuleExtracted]:
    from nearfree.sources.language.reading import mechanism_rule, read_rule

    key = (package, source.record.members)
    if key not in _RULES_BY_FILES:
        module, version = reader(package), source.record.version
        files = {path: source.text(path) for path in source.paths()}
        try:
            rules = [read_rule(reading, package, version) for reading in module.readings(files)]
            rules += [
                mechanism_rule(mechanism, package, version)
                for mechanism in module.mechanisms(files)
            ]
        except _READER_ERRORS as error:
            error_text = f"{type(error).__name__} {error}".strip()
            raise MovedError(f"its source is not of the known form: {error_text}") from error
        _RULES_BY_FILES[key] = rules
    return _RULES_BY_FILES[key]


def _extract(package: str, version: str, *, cache: Cache, offline: bool) -> Extraction:
    from nearfree.sources.fetching.fetch import fetch

    source = fetch(package, version, reader(package).WANTED, cache=cache, offline=offline)
    version = source.record.version
    rules = tuple(replace(rule, version=version) for rule in _rules(package, source))
    return Extraction(package=package, version=version, fetched=(source.record,), rules=rules)


def _with_tuned(extraction: Extraction, *, cache: Cache, offline: bool) -> Extraction:
    """Return an extraction with the index of tuned files, if its package has any."""
    pattern = getattr(reader(extraction.package), "TUNED", None)
    if pattern is None:
        return extraction
    from nearfree.sources.fetching.fetch import fetch
    from nearfree.sources.tuned import index_tuned

    source = fetch(extraction.package, extraction.version, pattern, cache=cache, offline=offline)
    files = {path: source.raw(path) for path in source.paths()}
    index = tuple(index_tuned(extraction.package, extraction.version, files))
    return replace(extraction, fetched=(*extraction.fetched, source.record), tuned=index)
