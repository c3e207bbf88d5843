"""Binaries in the event log: listed once a release, read back without the network."""

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

_SAID = re.compile(r"""^__version__ = ["']([0-9][0-9a-z.]{0,31})["']$""", re.MULTILINE)


class Checked(Struct, frozen=True):
    """A binary, the rules that it was compared with, and what came of it."""

    binary: str
    sha256: str
    kernels: int
    rules: str
    points: int
    differences: tuple[Difference, ...]


def list_take(package: str, version: str, take: int = 1) -> TakeName:
    """Return the name of the take of a release's binaries: `sources/binaries_vllm_0_20_2/1-...`."""
    stream = f"binaries_{stream_name(package, version)}"
    return take_name(SOURCES, stream, take, list_plan(package, version))


def list_plan(package: str, version: str) -> ListPlan:
    """Return the plan of listing the binaries of one release."""
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
        A binary is not to be had, damaged, or of an unknown form; nothing of any is recorded.
    """

    def events() -> Iterable[BinaryListed]:
        return [
            _listed(package, version, binary, cache=cache, offline=offline)
            for binary in PACKAGES[package].binaries
        ]

    return ensure_events(
        layout,
        list_take(package, version, take),
        list_plan(package, version),
        f"nearfree rules check {package}=={version}",
        events,
    )


def _listed(
    package: str, version: str, binary: Binary, *, cache: Cache, offline: bool
) -> BinaryListed:
    dumper = pinned_dumper(cache=cache, offline=offline)
    wanted = binary.path.replace(".", r"\.")
    source = fetch(package, version, wanted, cache=cache, offline=offline, limit=MEMBER_LIMIT)
    what = f"{package} {version}: {binary.path}"
    found = functions(list_functions(source.raw(binary.path), dumper, what))
    (member,) = source.record.members
    return BinaryListed(
        package=package,
        version=source.record.version,
        artefact=source.record.artefact,
        artefact_sha256=source.record.artefact_sha256,
        verified="member",
        member=member,
        licence=PACKAGES[package].licence,
        carries=_carries(package, version, binary, cache=cache, offline=offline),
        dumper=dumper.name,
        dumper_sha256=dumper.sha256,
        functions=len(found),
        held=held_kernels(found),
    )


def _carries(
    package: str, version: str, binary: Binary, *, cache: Cache, offline: bool
) -> str | None:
    if binary.says is None:
        return None
    wanted = binary.says.replace(".", r"\.")
    text = fetch(package, version, wanted, cache=cache, offline=offline).text(binary.says)
    said = _SAID.search(text)
    return said[1] if said else None


def recorded_listing(layout: Layout, package: str, version: str) -> tuple[BinaryListed, ...]:
    """Return what the log says of a release's binaries, from its newest take; none if nothing."""
    takes = read_scope(layout, SOURCES, stream=list_take(package, version).stream)
    newest = newest_takes(takes, BinaryListed)
    return tuple(event.data for take in newest for event in take.of(BinaryListed))


def check_release(
    layout: Layout, package: str, version: str, *, cache: Cache, offline: bool = False
) -> tuple[Checked, ...]:
    """Return how rules stand to each binary of a release on record.

    Raises
    ------
    EvidenceError
        The log has no listing of it that is not retracted.
    SourceError
        The rules are neither on record nor to be had.
    """
    listed = {each.member.path: each for each in recorded_listing(layout, package, version)}
    if not listed:
        raise EvidenceError(
            f"the log holds no binary of {package} {version} that is not retracted",
            remedy=f"Run `nearfree rules check {package}=={version} --take 2`",
        )
    checked = []
    for binary in PACKAGES[package].binaries:
        if binary.path not in listed:
            continue
        found = listed[binary.path]
        rules_version = found.carries or binary.rules_version or version
        rules = find_extraction(layout, binary.rules, rules_version, cache=cache, offline=offline)
        came = compare(rules.by_name(), found.held)
        checked.append(
            Checked(
                binary=binary.path,
                sha256=found.member.sha256,
                kernels=sum(each.kernels for each in found.held),
                rules=f"{binary.rules}=={rules_version}",
                points=came.points,
                differences=came.differences,
            )
        )
    return tuple(checked)
