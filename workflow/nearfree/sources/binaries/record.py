"""Binaries in the event log: listed once per release, then read without the network."""

import re
from collections.abc import Iterable

from msgspec import Struct

from nearfree.core.plan import ListPlan
from nearfree.core.scopes import SOURCES
from nearfree.errors import EvidenceError
from nearfree.log.events import BinaryListed
from nearfree.log.evidence import newest_takes, read_scope
from nearfree.log.names import Layout, TakeName
from nearfree.log.seal import Seal
from nearfree.log.take import ensure_events, take_name
from nearfree.sources.binaries.compare import Difference, compare
from nearfree.sources.binaries.dumper import list_functions, pinned_dumper
from nearfree.sources.binaries.kernels import functions, held_kernels
from nearfree.sources.binaries.packages import MEMBER_LIMIT, PACKAGES, Binary
from nearfree.sources.fetching.cache import Cache
from nearfree.sources.fetching.fetch import fetch
from nearfree.sources.record import find_extraction, stream_name

_VERSION = re.compile(r"""^__version__ = ["']([0-9][0-9a-z.]{0,31})["']$""", re.MULTILINE)


class BinaryCheck(Struct, frozen=True):
    """A binary, the rules that it was compared with, and the differences."""

    binary: str
    sha256: str
    kernels: int
    rules: str
    points: int
    differences: tuple[Difference, ...]


def list_take(package: str, version: str, take: int = 1) -> TakeName:
    """Return the take of a release's listed binaries: `sources/binaries_vllm_0_20_2/1-...`."""
    stream = f"binaries_{stream_name(package, version)}"
    return take_name(SOURCES, stream, take, list_plan(package, version))


def list_plan(package: str, version: str) -> ListPlan:
    """Return the plan that lists the binaries of one release."""
    members = tuple(binary.path for binary in PACKAGES[package].binaries)
    return ListPlan(package=package, version=version, members=members)


def record_listing(
    layout: Layout,
    package: str,
    version: str,
    *,
    cache: Cache,
    offline: bool = False,
    take: int = 1,
) -> Seal:
    """Make sure that the kernels of a release's binaries are in the log.

    Raises
    ------
    SourceError
        A binary is not available, damaged, or of an unknown form; nothing is recorded then.
    """

    def events() -> Iterable[BinaryListed]:
        return [
            _listing(package, version, binary, cache=cache, offline=offline)
            for binary in PACKAGES[package].binaries
        ]

    return ensure_events(
        layout,
        list_take(package, version, take),
        list_plan(package, version),
        f"nearfree rules check {package}=={version}",
        events,
    )


def _listing(
    package: str, version: str, binary: Binary, *, cache: Cache, offline: bool
) -> BinaryListed:
    dumper = pinned_dumper(cache=cache, offline=offline)
    pattern = binary.path.replace(".", r"\.")
    source = fetch(package, version, pattern, cache=cache, offline=offline, limit=MEMBER_LIMIT)
    label = f"{package} {version}: {binary.path}"
    device_functions = functions(list_functions(source.raw(binary.path), dumper, label))
    (member,) = source.record.members
    return BinaryListed(
        package=package,
        version=source.record.version,
        artefact=source.record.artefact,
        artefact_sha256=source.record.artefact_sha256,
        verified="member",
        member=member,
        licence=PACKAGES[package].licence,
        carries=_built_from(package, version, binary, cache=cache, offline=offline),
        dumper=dumper.name,
        dumper_sha256=dumper.sha256,
        functions=len(device_functions),
        held=held_kernels(device_functions),
    )


def _built_from(
    package: str, version: str, binary: Binary, *, cache: Cache, offline: bool
) -> str | None:
    """Return the release that a binary names as its source; None where it names none."""
    if binary.version_member is None:
        return None
    pattern = binary.version_member.replace(".", r"\.")
    text = fetch(package, version, pattern, cache=cache, offline=offline).text(
        binary.version_member
    )
    match = _VERSION.search(text)
    return match[1] if match else None


def recorded_listing(layout: Layout, package: str, version: str) -> tuple[BinaryListed, ...]:
    """Return the listed binaries of a release, from its newest take; empty if the log has none."""
    takes = read_scope(layout, SOURCES, stream=list_take(package, version).stream)
    newest = newest_takes(takes, BinaryListed)
    return tuple(event.data for take in newest for event in take.events_of(BinaryListed))


def check_release(
    layout: Layout, package: str, version: str, *, cache: Cache, offline: bool = False
) -> tuple[BinaryCheck, ...]:
    """Return the differences between rules and each recorded binary of a release.

    Raises
    ------
    EvidenceError
        The log has no listing of the release that is not retracted.
    SourceError
        The rules are neither on record nor available.
    """
    listings = {
        listing.member.path: listing for listing in recorded_listing(layout, package, version)
    }
    if not listings:
        raise EvidenceError(
            f"the log holds no binary of {package} {version} that is not retracted",
            remedy=f"Run `nearfree rules check {package}=={version} --take 2`",
        )
    checks = []
    for binary in PACKAGES[package].binaries:
        if binary.path not in listings:
            continue
        listing = listings[binary.path]
        rules_version = listing.carries or binary.rules_version or version
        rules = find_extraction(layout, binary.rules, rules_version, cache=cache, offline=offline)
        comparison = compare(rules.by_name(), listing.held)
        checks.append(
            BinaryCheck(
                binary=binary.path,
                sha256=listing.member.sha256,
                kernels=sum(kernel.kernels for kernel in listing.held),
                rules=f"{binary.rules}=={rules_version}",
                points=comparison.points,
                differences=comparison.differences,
            )
        )
    return tuple(checks)
