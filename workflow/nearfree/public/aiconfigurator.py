"""The public latency tables of AIConfigurator, from its wheel into the event log.

The tables are NVIDIA's, under the licence that the wheel states. The cache keeps the wheel's
metadata with them, and each event names licence and copyright. No row is in this repository.

Products are measured with activations already in the product's format. Quantisation is measured
separately, in `scale_matrix_perf` (quantising [m, k]) and `computescale_perf` (the extra time to
find the scale: 0 in nearly all rows). It is a pass over activations without a weight, which is no
module of a setting, so neither table is read.
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
from nearfree.sources.fetching.cache import Cache, Source
from nearfree.sources.fetching.fetch import fetch
from nearfree.sources.record import stream_name
from nearfree.units import BYTES_PER_GB, GFLOP_PER_TFLOP

OTHER_VENDORS = {"b60": "an Intel GPU"}
"""Systems of other vendors than NVIDIA, which are excluded."""
COPIED = "the same values as another table"
ROUNDING_TOLERANCE = 0.01
"""Relative difference up to which two values of a fact count as equal up to rounding."""
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
    """A system of the source: its platform in this project, and the source's facts of it."""

    name: str
    platform: str
    known: bool
    """Whether config/platforms.yaml has the platform."""
    facts: Platform
    notice: str
    """The copyright line of the system's file."""


def read_system(name: str, text: str, platforms: Mapping[str, Platform]) -> System:
    """Return the system in a file's text; each fact is a line `  key: number`.

    Raises
    ------
    SourceError
        The file lacks a bandwidth, bfloat16 peak or copyright line of that form, or the name of an
        unknown system is not a valid platform name.
    """
    facts = dict(_FACT.findall(text))
    missing = [key for key in ("mem_bw", _PEAKS["bfloat16"]) if key not in facts]
    notice = _COPYRIGHT.search(text)
    if missing or notice is None:
        raise _odd(name, f"has no {missing[0] if missing else 'copyright line'}")
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
    """Return the first of some bandwidths that a file contains, in GB/s; None without one."""
    return next((int(facts[key]) / BYTES_PER_GB for key in keys if key in facts), None)


def differences(system: System, platform: Platform) -> Iterator[str]:
    """Yield each fact of a platform for which the source has another value than this project."""
    source_facts = system.facts
    pairs = {
        "bandwidth, GB/s": (platform.bandwidth_gb_s, source_facts.bandwidth_gb_s),
        "link, GB/s": (platform.link_gb_s, source_facts.link_gb_s),
        "PCIe, GB/s": (platform.pcie_gb_s, source_facts.pcie_gb_s),
        "network, GB/s": (platform.network_gb_s, source_facts.network_gb_s),
    }
    for dtype, peak in source_facts.peak_tflops.items():
        pairs[f"{dtype} peak, TFLOP/s"] = (platform.peak_tflops.get(dtype), peak)
    for fact, (own, source) in pairs.items():
        if source is not None and (own is None or abs(source / own - 1.0) > ROUNDING_TOLERANCE):
            here = "none" if own is None else f"{own:g}"
            yield f"{system.platform}: {fact}: {here} here, {source:g} in {system.name}.yaml"


def _odd(name: str, problem: str) -> SourceError:
    return SourceError(f"the system file {name}.yaml {problem}", remedy=_REMEDY)


PACKAGE = "aiconfigurator-core"
VERSION = "0.12.0"
"""The default version."""
FORM = 4
"""The version of the conversion of rows to curves; a new one makes a new take of an imported
release. 2 added formats other than bfloat16, float16 and float8, and caches in a separate format; 3
added collectives, and the exponents of power laws in the routing; 4 added latent and sparse
attention, its indexers, and whole layers of it."""
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
"""The members that are read: tables, system files, and licence files."""


class ReleaseContent(Struct, frozen=True):
    """The content of a release: its curves, and the rows and curves that were excluded."""

    events: list[LatencyImported]
    notice: str
    """Release, licence and copyright."""
    systems: list[System]
    rows_skipped: dict[tuple[str, str], int]
    """Excluded rows, which are no point of a setting, by table and reason."""
    curves_skipped: dict[tuple[str, str], int]
    """Excluded curves, which are implausible or copies, by platform and reason."""
    examples: dict[str, str]
    """An excluded curve per reason."""
    repeats: int
    left_out: dict[str, str]
    """Systems of which nothing is imported, and why."""
    differences: list[str]
    """Facts for which the release has another value than config/platforms.yaml."""


def read_release(source: Source, platforms: Mapping[str, Platform]) -> ReleaseContent:
    """Return the content of a release's tables; SourceError names a member that cannot be read."""
    systems, left_out = _systems(source, platforms)
    facts = {system.platform: system.facts for system in systems.values()}
    facts |= {name: platform for name, platform in platforms.items() if name in facts}
    licence = _licence(source)
    hashes = {member.path: member.sha256 for member in source.record.members}
    events: list[LatencyImported] = []
    row_counts: Counter[tuple[str, str]] = Counter()
    curve_counts: Counter[tuple[str, str]] = Counter()
    examples: dict[str, str] = {}
    repeats = 0
    seen: set[tuple[object, ...]] = set()
    for path, path_fields, table in _rows(source):
        system = systems.get(path_fields["system"])
        if system is None:
            raise SourceError(
                f"{path} is of a system without a file {path_fields['system']}.yaml", remedy=_REMEDY
            )
        points = table.points.with_columns(pl.lit(system.platform).alias("platform"))
        if "backend" not in points.columns:
            points = points.with_columns(pl.lit(path_fields["backend"]).alias("backend"))
        curves = make_curves(
            points,
            Member(f"{licence}, {system.notice}", path, hashes[path]),
            facts,
            over_context="generation" in path_fields["table"],
        )
        new, copies = _without_copies(curves.events, seen)
        events += new
        if copies:
            curve_counts[system.platform, COPIED] += len(copies)
            examples.setdefault(COPIED, f"{path}: {copies[0].kernel}")
        repeats += curves.repeats
        row_counts.update(
            {(path_fields["table"], reason): count for reason, count in table.skipped.items()}
        )
        curve_counts.update(
            {(system.platform, reason): count for reason, count in curves.skipped.items()}
        )
        examples = {**curves.examples, **examples}
    if not events:
        raise SourceError(
            f"{source.record.package} {source.record.version} holds no curve of the known form",
            remedy=_REMEDY,
        )
    return ReleaseContent(
        events=events,
        notice=events[0].source,
        systems=list(systems.values()),
        rows_skipped=dict(row_counts),
        curves_skipped=dict(curve_counts),
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
    events: list[LatencyImported], seen: set[tuple[object, ...]]
) -> tuple[list[LatencyImported], list[LatencyImported]]:
    """Return the new curves, and copies of those in `seen`; add the new ones to `seen`.

    Some tables of collectives are in several folders, one of them under two systems, so that
    excluding one file would not exclude its values.
    """
    new: list[LatencyImported] = []
    copies: list[LatencyImported] = []
    for event in events:
        key = event.setting, event.backend_version, event.kernel, event.n, event.latency_us
        is_copy = event.setting.module == "collective" and key in seen
        (copies if is_copy else new).append(event)
        seen.add(key)
    return new, copies


def _tables(source: Source) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield the tables, sorted by path, with system, backend and table."""
    for path in source.paths():
        match = _TABLE.fullmatch(path)
        if match is not None:
            yield path, match.groupdict()


def _rows(source: Source) -> Iterator[tuple[str, dict[str, str], Rows]]:
    """Yield the tables with their rows, read in a separate process."""
    with GuardedReader() as reader:
        for path, path_fields in _tables(source):
            yield path, path_fields, reader.read(path, source.raw(path))


def _systems(
    source: Source, platforms: Mapping[str, Platform]
) -> tuple[dict[str, System], dict[str, str]]:
    """Return the systems that have tables, and why others are excluded, by the source's names."""
    measured = {path_fields["system"] for _, path_fields in _tables(source)}
    files = {match[1]: path for path in source.paths() if (match := _SYSTEM.fullmatch(path))}
    systems, left_out = {}, {}
    for name, path in files.items():
        if name in measured:
            systems[name] = read_system(name, source.text(path), platforms)
        else:
            left_out[name] = OTHER_VENDORS.get(name, "the release has no table of it")
    return systems, left_out


def _licence(source: Source) -> str:
    """Return release and licence from the wheel's metadata; SourceError without a licence."""
    paths = [path for path in source.paths() if _METADATA.fullmatch(path)]
    headers = HeaderParser().parsestr(source.text(paths[0]) if len(paths) == 1 else "")
    licence = headers.get("License-Expression") or headers.get("License")
    if licence is None or not re.fullmatch(r"[\w.+() -]{1,80}", licence):
        raise SourceError(
            f"{source.record.package} {source.record.version} states no licence",
            remedy="Import a version whose metadata has a License-Expression",
        )
    return f"{source.record.package} {source.record.version}, {licence}"


class Imported(Struct, frozen=True):
    """A sealed import, and the release's content if it was imported now, not before."""

    seal: Seal
    fresh: ReleaseContent | None


def import_aiconfigurator(
    layout: Layout,
    platforms: Mapping[str, Platform],
    *,
    cache: Cache,
    version: str = VERSION,
    take: int = 1,
    offline: bool = False,
) -> Imported:
    """Import a release's latency tables into the log, all of them or none.

    A system that is none of `platforms`, those of config/platforms.yaml, keeps its own name.

    Raises
    ------
    SourceError
        The release is not available, damaged, or of an unknown form; the message names the member.
    """
    source = fetch(PACKAGE, version, WANTED, cache=cache, offline=offline)
    record = source.record
    plan = ImportPlan(files={record.artefact: record.artefact_sha256}, form=FORM)
    name = take_name(IMPORTED, stream_name(PACKAGE, record.version), take, plan)
    existing = ensure_sealed(layout, name)
    if existing is not None:
        return Imported(existing, None)
    release = read_release(source, platforms)
    command = f"nearfree import aiconfigurator --version {record.version}"
    seal = ensure_events(layout, name, plan, command, lambda: (record, *release.events))
    return Imported(seal, release)
