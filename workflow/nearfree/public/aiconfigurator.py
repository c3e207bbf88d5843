"""The public latency tables of AIConfigurator, from its wheel into the event log.

The tables are NVIDIA's, under the licence that the wheel states; the wheel's metadata is kept in
the cache beside them, and each event names licence and copyright. No row is in this repository.

Products are read with their activations in the product's own format. What makes them so is timed
apart, in `scale_matrix_perf` (quantising [m, k]) and `computescale_perf` (what finding the scale
adds: 0 in nearly all rows): a pass over activations without a weight, which is no module of a
setting, so neither is read.
"""

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from email.parser import HeaderParser

import polars as pl
from msgspec import Struct

from nearfree.core.names import NAME
from nearfree.core.plan import ImportPlan
from nearfree.core.scopes import IMPORTED
from nearfree.errors import ConfigError, SourceError
from nearfree.hardware.platforms import Platform, resolve
from nearfree.log.events import LatencyImported
from nearfree.log.line import without_private
from nearfree.log.names import Layout
from nearfree.log.seal import Seal
from nearfree.log.take import ensure_events, ensure_sealed, take_name
from nearfree.public.guarded_reader import GuardedReader
from nearfree.public.latent_tables import TABLES as LATENT_TABLES
from nearfree.public.perf_tables import Rows
from nearfree.public.table_curves import Member, make_curves
from nearfree.sources.fetching.cache import Cache
from nearfree.sources.fetching.fetch import fetch
from nearfree.sources.fetching.source import Source
from nearfree.sources.record import stream_name
from nearfree.units import BYTES_PER_GB, GFLOP_PER_TFLOP

OTHER_VENDORS = {"b60": "an Intel GPU"}
"""Systems that are not NVIDIA's, and so are left out."""
COPIED = "the same values as another table"
SAME = 0.01
"""Up to this share two printed values of a fact are roundings of one another."""
_FLOP_PER_TFLOP = GFLOP_PER_TFLOP * 1e9
_PEAKS = {
    "bfloat16": "bfloat16_tc_flops",
    "float8": "fp8_tc_flops",
    "int8": "int8_tc_flops",
    "float4": "fp4_tc_flops",
}
_FACT = re.compile(r"^  (\w+): ([1-9]\d{0,17})(?:\s|$)", re.MULTILINE | re.ASCII)
_COPYRIGHT = re.compile(r"^# SPDX-FileCopyrightText: ([^\n]{1,200})$", re.MULTILINE)


class System(Struct, frozen=True):
    """A system of the source: the platform that it is here, and the source's own facts of it."""

    name: str
    platform: str
    known: bool
    """Whether config/platforms.yaml has the platform."""
    facts: Platform
    notice: str
    """The copyright line of the system's file."""


def read_system(name: str, text: str, platforms: Mapping[str, Platform]) -> System:
    """Return a system, given its file's text; every fact is a line `  key: number` of it.

    Raises
    ------
    SourceError
        The file has no bandwidth, bfloat16 peak or copyright line of that form, or the name of a
        system that is not known here cannot be a platform's.
    """
    facts = dict(_FACT.findall(text))
    lacking = [key for key in ("mem_bw", _PEAKS["bfloat16"]) if key not in facts]
    notice = _COPYRIGHT.search(text)
    if lacking or notice is None:
        raise _odd(name, f"has no {lacking[0] if lacking else 'copyright line'}")
    try:
        platform, known = resolve(dict(platforms), name), True
    except ConfigError as error:
        if not re.fullmatch(NAME, name):
            raise _odd(name, "has a name that no platform can have") from error
        platform, known = name, False
    peaks = {dtype: int(facts[key]) / _FLOP_PER_TFLOP for dtype, key in _PEAKS.items()
             if key in facts}  # fmt: skip
    return System(
        name=name,
        platform=platform,
        known=known,
        facts=Platform(
            kind="cuda",
            peak_tflops=peaks,
            bandwidth_gb_s=int(facts["mem_bw"]) / BYTES_PER_GB,
            nvlink_gb_s=_gb_s(facts, "intra_node_bw"),
            pcie_gb_s=_gb_s(facts, "pcie_bw"),
            network_gb_s=_gb_s(facts, "inter_rack_bw", "inter_node_bw"),
        ),
        notice=without_private(notice[1].strip()),
    )


def _gb_s(facts: Mapping[str, str], *keys: str) -> float | None:
    """Return the first of some bandwidths that a file has, in GB/s."""
    return next((int(facts[key]) / BYTES_PER_GB for key in keys if key in facts), None)


def differences(system: System, ours: Platform) -> Iterator[str]:
    """Yield each fact of a known platform for which the source has another value than we."""
    theirs = system.facts
    pairs = {
        "bandwidth, GB/s": (ours.bandwidth_gb_s, theirs.bandwidth_gb_s),
        "link, GB/s": (ours.link_gb_s, theirs.link_gb_s),
        "PCIe, GB/s": (ours.pcie_gb_s, theirs.pcie_gb_s),
        "network, GB/s": (ours.network_gb_s, theirs.network_gb_s),
    }
    for dtype, peak in theirs.peak_tflops.items():
        pairs[f"{dtype} peak, TFLOP/s"] = (ours.peak_tflops.get(dtype), peak)
    for fact, (here, there) in pairs.items():
        if here is None and there is not None:
            yield f"{system.platform}: {fact}: none here, {there:g} in {system.name}.yaml"
        elif here is not None and there is not None and abs(there / here - 1.0) > SAME:
            yield f"{system.platform}: {fact}: {here:g} here, {there:g} in {system.name}.yaml"


def _odd(name: str, what: str) -> SourceError:
    return SourceError(f"the system file {name}.yaml {what}", remedy=_REMEDY)


PACKAGE = "aiconfigurator-core"
VERSION = "0.12.0"
"""The version that is read unless another is asked for."""
FORM = 4
"""Which rows become curves: a new number makes a new take of a release that is in the log. 2 has
the formats beside bfloat16, float16 and float8, and caches in a format of their own; 3 has
collectives, and the exponents of power laws in the routing; 4 has latent and sparse attention, its
indexers, and whole layers of it."""
_REMEDY = "Import a version whose form is known, such as 0.12.0"
_ROOT = "aiconfigurator_core/systems/"
_TABLE = re.compile(
    _ROOT + r"data/(?P<system>[^/]+)/(?:gemm|moe|attention|comm|mla|msa|sparse_attention)/"
    r"(?P<backend>vllm|sglang|trtllm|nccl)/[^/]+/"
    r"(?P<table>gemm|moe|context_attention|generation_attention|custom_allreduce|nccl|"
    r"wideep_deepep_ll|wideep_deepep_normal|moe_a2a|"
    + "|".join(name.removesuffix("_perf") for name in LATENT_TABLES)
    + r")_perf\.parquet"
)
_SYSTEM = re.compile(_ROOT + r"([^/]+)\.yaml")
_METADATA = re.compile(r"[^/]+\.dist-info/METADATA")
_NO_SYSTEMS = ("attention_lane_defaults", "perf_data_reuse_manifest", "query_versions")
WANTED = (
    _ROOT + rf"(?!(?:{'|'.join(_NO_SYSTEMS)})\.)[^/]+\.yaml"
    rf"|(?!{_ROOT}data/(?:{'|'.join(OTHER_VENDORS)})/)"
    + re.sub(r"\?P<\w+>", "?:", _TABLE.pattern)
    + r"|[^/]+\.dist-info/(?:METADATA|licenses/.+|LICENSE.*|NOTICE.*)"
)
"""The members that are read: tables, system files, and what states the licence."""


class Found(Struct, frozen=True):
    """What a release holds: its curves, and all that did not become one."""

    events: list[LatencyImported]
    notice: str
    """Release, licence and copyright."""
    systems: list[System]
    rows_skipped: dict[tuple[str, str], int]
    """Rows that are no point of a setting, by table and reason."""
    curves_skipped: dict[tuple[str, str], int]
    """Curves that are not believed, by platform and reason."""
    examples: dict[str, str]
    """One such curve a reason."""
    repeats: int
    left_out: dict[str, str]
    """Systems of which nothing is imported, and why."""
    differences: list[str]
    """Facts for which the release has another value than config/platforms.yaml."""


def read_release(source: Source, platforms: Mapping[str, Platform]) -> Found:
    """Return everything that a release's tables hold; SourceError names a member that is odd."""
    systems, left_out = _systems(source, platforms)
    facts = {system.platform: system.facts for system in systems.values()}
    facts |= {name: platform for name, platform in platforms.items() if name in facts}
    licence = _licence(source)
    hashes = {member.path: member.sha256 for member in source.record.members}
    events: list[LatencyImported] = []
    rows: Counter[tuple[str, str]] = Counter()
    curves: Counter[tuple[str, str]] = Counter()
    examples: dict[str, str] = {}
    repeats = 0
    told: set[tuple[object, ...]] = set()
    for path, place, table in _rows(source):
        system = systems.get(place["system"])
        if system is None:
            raise SourceError(
                f"{path} is of a system without a file {place['system']}.yaml", remedy=_REMEDY
            )
        points = table.points.with_columns(pl.lit(system.platform).alias("platform"))
        if "backend" not in points.columns:
            points = points.with_columns(pl.lit(place["backend"]).alias("backend"))
        made = make_curves(
            points,
            Member(f"{licence}, {system.notice}", path, hashes[path]),
            facts,
            over_context="generation" in place["table"],
        )
        fresh, copies = _without_copies(made.events, told)
        events += fresh
        if copies:
            curves[system.platform, COPIED] += len(copies)
            examples.setdefault(COPIED, f"{path}: {copies[0].kernel}")
        repeats += made.repeats
        rows.update({(place["table"], why): many for why, many in table.skipped.items()})
        curves.update({(system.platform, why): many for why, many in made.skipped.items()})
        examples = {**made.examples, **examples}
    if not events:
        raise SourceError(
            f"{source.record.package} {source.record.version} holds no curve of the known form",
            remedy=_REMEDY,
        )
    return Found(
        events=events,
        notice=events[0].source,
        systems=list(systems.values()),
        rows_skipped=dict(rows),
        curves_skipped=dict(curves),
        examples=examples,
        repeats=repeats,
        left_out=left_out,
        differences=[
            text
            for system in systems.values()
            if system.known
            for text in differences(system, platforms[system.platform])
        ],
    )


def _without_copies(
    events: list[LatencyImported], told: set[tuple[object, ...]]
) -> tuple[list[LatencyImported], list[LatencyImported]]:
    """Return the curves that no table told before, and the others; `told` takes in the first.

    Some tables of collectives lie in several folders, one of them under two systems: to leave out
    the one would not leave out its values.
    """
    fresh: list[LatencyImported] = []
    copies: list[LatencyImported] = []
    for event in events:
        key = event.setting, event.backend_version, event.kernel, event.n, event.latency_us
        copy = event.setting.module == "collective" and key in told
        (copies if copy else fresh).append(event)
        told.add(key)
    return fresh, copies


def _tables(source: Source) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield the tables, sorted by path, with system, backend and table."""
    for path in source.paths():
        match = _TABLE.fullmatch(path)
        if match is not None:
            yield path, match.groupdict()


def _rows(source: Source) -> Iterator[tuple[str, dict[str, str], Rows]]:
    """Yield the tables with their rows, read where hostile bytes do no harm."""
    with GuardedReader() as reader:
        for path, place in _tables(source):
            yield path, place, reader.read(path, source.raw(path))


def _systems(
    source: Source, platforms: Mapping[str, Platform]
) -> tuple[dict[str, System], dict[str, str]]:
    """Return the systems that have tables, and why nothing is read of the others, by own name."""
    measured = {place["system"] for _, place in _tables(source)}
    files = {match[1]: path for path in source.paths() if (match := _SYSTEM.fullmatch(path))}
    systems, left_out = {}, {}
    for name, path in files.items():
        if name in measured:
            systems[name] = read_system(name, source.text(path), platforms)
        else:
            left_out[name] = OTHER_VENDORS.get(name, "the release has no table of it")
    return systems, left_out


def _licence(source: Source) -> str:
    """Return release and licence as the wheel's metadata states it; SourceError if it does not."""
    paths = [path for path in source.paths() if _METADATA.fullmatch(path)]
    heads = HeaderParser().parsestr(source.text(paths[0]) if len(paths) == 1 else "")
    licence = heads.get("License-Expression") or heads.get("License")
    if licence is None or not re.fullmatch(r"[\w.+() -]{1,80}", licence):
        raise SourceError(
            f"{source.record.package} {source.record.version} states no licence",
            remedy="Import a version whose metadata has a License-Expression",
        )
    return f"{source.record.package} {source.record.version}, {licence}"


class Imported(Struct, frozen=True):
    """A sealed import, and what was found on the way if it was made now, not before."""

    seal: Seal
    fresh: Found | None


def import_aiconfigurator(
    layout: Layout,
    platforms: Mapping[str, Platform],
    *,
    cache: Cache,
    version: str = VERSION,
    take: int = 1,
    offline: bool = False,
) -> Imported:
    """Make sure that a release's latency tables are in the log, nothing in part.

    Parameters
    ----------
    platforms
        The platforms of config/platforms.yaml; a system that is none of them keeps its own name.
    take
        The take's number: a new one where the last was retracted.

    Raises
    ------
    SourceError
        The release is not to be had, damaged, or of an unknown form; the message names the member.
    """
    source = fetch(PACKAGE, version, WANTED, cache=cache, offline=offline)
    record = source.record
    plan = ImportPlan(files={record.artefact: record.artefact_sha256}, form=FORM)
    name = take_name(IMPORTED, stream_name(PACKAGE, record.version), take, plan)
    sealed = ensure_sealed(layout, name)
    if sealed is not None:
        return Imported(sealed, None)
    content = read_release(source, platforms)
    command = f"nearfree import aiconfigurator --version {record.version}"
    seal = ensure_events(layout, name, plan, command, lambda: (record, *content.events))
    return Imported(seal, content)
