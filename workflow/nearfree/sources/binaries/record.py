"""Binaries in the event log: listed once per release, then read without the network."""

import re
from collections.abc import Iterable
from typing import NamedTuple

from msgspec import Struct

from nearfree.core.plan import ListPlan
from nearfree.core.scopes import SOURCES
from nearfree.errors import EvidenceError, SourceError
from nearfree.log.events import BinaryListed
from nearfree.log.evidence import newest_takes, read_scope
from nearfree.log.names import Layout, TakeName
from nearfree.log.seal import Seal
from nearfree.log.take import ensure_events, take_name
from nearfree.sources.binaries.compare import Difference, compare
from nearfree.sources.binaries.dumper import list_functions, pinned_dumper
from nearfree.sources.binaries.kernels import functions, held_kernels
from nearfree.sources.fetching.cache import Cache
from nearfree.sources.fetching.fetch import fetch
from nearfree.sources.packages import plain_version
from nearfree.sources.record import find_extraction, stream_name

MEMBER_LIMIT = 2**30
"""Limit of a binary, in bytes: FlashAttention's hold hundreds of kernels, up to 852 MB."""


class Binary(NamedTuple):
    """A wheel member that holds attention kernels, and the rules that choose among them."""

    path: str
    rules: str
    """The package whose rules are compared."""
    rules_version: str | None = None
    """The version of the rules; None for the binary's own version."""
    version_member: str | None = None
    """The member that may name the release that it was built from; it overrides rules_version."""


class Package(NamedTuple):
    """A package's licence and its binaries."""

    licence: str
    binaries: tuple[Binary, ...]


PACKAGES = {
    # vLLM builds FlashAttention 2 from a fork. Up to 0.14.0 the wheel names the release
    # (2.7.2.post1, with kernels of 160 elements); the kernels of 0.20.2 and 0.33.0 are 2.8.3's.
    "vllm": Package(
        "Apache-2.0",
        (
            Binary(
                "vllm/vllm_flash_attn/_vllm_fa2_C.abi3.so",
                rules="flash-attn",
                rules_version="2.8.3",
                version_member="vllm/vllm_flash_attn/__init__.py",
            ),
            Binary("vllm/vllm_flash_attn/_vllm_fa3_C.abi3.so", rules="vllm-fa3"),
        ),
    ),
    # SGLang's copy of FlashAttention 3 has no rules of its own on record.
    "sgl-kernel": Package(
        "Apache-2.0",
        (Binary("sgl_kernel/flash_ops.abi3.so", rules="xformers", rules_version="0.0.34"),),
    ),
    "xformers": Package("BSD-3-Clause", (Binary("xformers/flash_attn_3/_C.so", rules="xformers"),)),
}
"""The packages whose binaries are read: BSD and Apache licences allow inspection."""


def binary_release(text: str) -> tuple[str, str]:
    """Return package and version of a text like `vllm==0.20.2`.

    Raises
    ------
    SourceError
        It does not have that form, or the package's binaries are not read.
    """
    name, _, version = text.partition("==")
    package = re.sub(r"[-_.]+", "-", name).lower()
    if package not in PACKAGES:
        raise SourceError(
            f"binaries of {name!r} are not read: either their licence does not allow it, or they"
            " hold no kernel that rules cover",
            remedy=f"Choose from {', '.join(PACKAGES)}",
        )
    return package, plain_version(package, version)


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
