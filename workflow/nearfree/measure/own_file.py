"""Plan a study of the user's own GGUF file, without an entry in config/."""

import re
from pathlib import Path
from typing import NamedTuple

from msgspec import structs

from nearfree.backends.builds import build_of, builds, locked
from nearfree.config.engine_studies import engine_sweeps
from nearfree.core.modules.engine import EngineStudy
from nearfree.core.plan import MeasurePlan
from nearfree.core.precision import Dtype
from nearfree.core.protocols import Timing
from nearfree.core.weights import WeightsFile
from nearfree.engines.kernel import refuse_too_large
from nearfree.errors import ConfigError
from nearfree.gguf.header import GgufHeader, bytes_by_type, refuse_part
from nearfree.gguf.reader import read_header, weights_sha256

POSITIONS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 13, 15, 16, 17, 24, 32, 33)
"""The default grid of N: both sides of the steps at tiles of 4, 8 and 16 rows."""


WARMUP = {"openvino": 1}
"""Untimed forwards before a timed one, by engine: OpenVINO prepares a forward anew whenever N
changes. Its own loop pads drafts, so that N stays the same there."""


class OwnFile(NamedTuple):
    """A user's file as a stream with its plan, and the paths of its weights by SHA-256."""

    stream: str
    plan: MeasurePlan
    files: dict[str, Path]


def own_file(
    engine: str,
    path: Path,
    *,
    scope: str,
    release: str | None,
    batch: tuple[int, ...],
    context: tuple[int, ...],
    threads: tuple[int, ...],
    repack: tuple[bool, ...],
    kv_dtype: Dtype | None = None,
    positions: tuple[int, ...] | None,
    protocol: Timing,
    name: str | None = None,
) -> OwnFile:
    """Return the plan that measures a user's GGUF file.

    The file's whole header is checked first. The release defaults to the engine's default one, the
    model's name in the log to one made from the file's name. The engine sets the number of warm-up
    forwards of a visit.

    Raises
    ------
    ConfigError
        The file is no GGUF file, is truncated, contradicts itself or is one part of several, or
        the release, an axis or the grid is invalid.
    EvidenceError
        The file does not fit into memory, or its context does not hold L + N.
    """
    header = read_header(path)
    refuse_part(header)
    release = release or default_release(engine)
    build_of(engine, release)
    name = name or model_name(path)
    weights = WeightsFile(file_type=file_type(header), sha256=weights_sha256(path))
    study = EngineStudy(
        backend=engine,
        platforms=(scope,),
        model=name,
        release=release,
        batch=batch,
        context=context,
        threads=threads,
        repack=repack,
        kv_dtype=kv_dtype,
        positions=positions or POSITIONS,
        protocol=structs.replace(protocol, warmup=WARMUP.get(engine, 0)),
    )
    sweeps = engine_sweeps(study, weights)
    for sweep in sweeps:
        refuse_too_large(sweep.setting, header, max(sweep.positions))
    plan = MeasurePlan(
        sweeps=sweeps,
        protocol=study.protocol,
        environment=build_of(engine, release).environment,
        weights={name: weights},
    )
    return OwnFile(f"{engine}_{name}"[:64], plan, {weights.sha256: path})


def default_release(engine: str) -> str:
    """Return an engine's first prebuilt release, else its first release.

    Raises
    ------
    ConfigError
        No release of the engine is pinned.
    """
    pinned = builds(engine)
    ready = [release for release, build in pinned.items() if build.prebuilt]
    for release in (*ready, *pinned):
        return release
    raise ConfigError(
        f"{engine!r:.60} is no engine that is driven here",
        remedy=f"Choose {' or '.join(locked())}",
    )


def model_name(path: Path) -> str:
    """Return the name of a file's model in the log: its file name in lower case."""
    name = re.sub(r"[^a-z0-9]+", "_", path.stem.lower()).strip("_")
    return name[:48] or "model"


def file_type(header: GgufHeader) -> str:
    """Return the file's GGUF file type, or else the type of most of its bytes."""
    type_name = header.file_type or next(iter(bytes_by_type(header)), "f32")
    return re.sub(r"[^a-z0-9]+", "_", type_name.lower()).strip("_")
