"""Rules in the event log: written once per release, read back without the network."""

import re
from collections.abc import Iterable

from nearfree.core.plan import ExtractPlan
from nearfree.core.scopes import SOURCES
from nearfree.errors import EvidenceError
from nearfree.log.events import Payload, RuleExtracted, SourceFetched, TunedIndexed
from nearfree.log.evidence import Take, open_takes, read_scope
from nearfree.log.names import Layout, TakeName
from nearfree.log.seal import Seal
from nearfree.log.take import ensure_events, take_name
from nearfree.sources.extraction import Extraction, extract
from nearfree.sources.fetching.cache import Cache
from nearfree.sources.packages import RULES


def extract_plan(package: str, version: str) -> ExtractPlan:
    """Return the plan that reads one release."""
    return ExtractPlan(package=package, version=version, form=RULES[package].form)


def extract_take(package: str, version: str, take: int = 1) -> TakeName:
    """Return the name of a release's take: `sources/vllm_0_20_2/1-...`."""
    return take_name(SOURCES, stream_name(package, version), take, extract_plan(package, version))


def stream_name(package: str, version: str) -> str:
    """Return the name of a release's stream in the log."""
    return re.sub(r"[^a-z0-9]+", "_", f"{package}_{version}".lower()).strip("_")


def record_extraction(
    layout: Layout,
    package: str,
    version: str,
    *,
    cache: Cache,
    offline: bool = False,
    take: int = 1,
) -> Seal:
    """Make sure that a release's rules and tuned files are in the log.

    Raises
    ------
    SourceError
        The release is not available, damaged, or of an unknown form; nothing is recorded then.
    """
    plan = extract_plan(package, version)

    def events() -> Iterable[Payload]:
        extraction = extract(package, version, cache=cache, offline=offline)
        return (*extraction.fetched, *extraction.rules, *extraction.tuned)

    command = f"nearfree rules extract {package}=={version}"
    return ensure_events(layout, extract_take(package, version, take), plan, command, events)


def recorded_take(layout: Layout, package: str, version: str) -> Take | None:
    """Return the newest take of a release's rules; None if the log has none."""
    stream = stream_name(package, version)
    takes = read_scope(layout, SOURCES, stream=stream, only=(SourceFetched,))
    release_takes = [take for take in takes if _is_of_release(take, package, version)]
    if not release_takes:
        return None
    newest = max(release_takes, key=lambda take: take.order).name  # only its rules are decoded
    opened = open_takes(layout, SOURCES, stream=stream)
    return next(Take(*parts) for parts in opened if parts[0] == newest)


def extraction_of(take: Take) -> Extraction:
    """Return the extraction of a take's release."""
    fetched = tuple(event.data for event in take.events_of(SourceFetched))
    return Extraction(
        package=fetched[0].package,
        version=fetched[0].version,
        fetched=fetched,
        rules=tuple(event.data for event in take.events_of(RuleExtracted)),
        tuned=tuple(event.data for event in take.events_of(TunedIndexed)),
    )


def recorded_extraction(layout: Layout, package: str, version: str) -> Extraction | None:
    """Return a release's extraction from its newest take in the log; None if it has none."""
    take = recorded_take(layout, package, version)
    return None if take is None else extraction_of(take)


def find_extraction(
    layout: Layout, package: str, version: str, *, cache: Cache, offline: bool = False
) -> Extraction:
    """Return a release's extraction from the log, else read it into the cache, not the log.

    Raises
    ------
    EvidenceError
        Neither the log nor, with `offline`, the cache has it.
    SourceError
        The release is not available, damaged, or of an unknown form.
    """
    extraction = recorded_extraction(layout, package, version)
    if extraction is None:
        extraction = extract(package, version, cache=cache, offline=offline)
    if not extraction.rules:
        raise EvidenceError(
            f"the log holds no rule of {package} {version} that is not retracted",
            remedy=f"Run `nearfree rules extract {package}=={version} --take 2`",
        )
    return extraction


def _is_of_release(take: Take, package: str, version: str) -> bool:
    return any(
        (event.data.package, event.data.version) == (package, version)
        for event in take.events_of(SourceFetched)
    )
