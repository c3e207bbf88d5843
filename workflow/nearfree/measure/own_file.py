"""A GGUF file of the user's as a study of its own, without an entry in config/."""

import re
from pathlib import Path
from typing import NamedTuple

from msgspec import structs

from nearfree.backends.builds import build_of, builds, locked
from nearfree.config.engine_studies import engine_sweeps
from nearfree.core.modules.engine import EngineStudy
from nearfree.core.plan import MeasurePlan
from nearfree.core.protocols import Timing
from nearfree.core.weights import WeightsFile
from nearfree.engines.kernel import refuse_too_large
from nearfree.errors import ConfigError
from nearfree.gguf.header import GgufHeader, bytes_by_type, refuse_part
from nearfree.gguf.reader import read_header, weights_sha256

POSITIONS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 12, 13, 15, 16, 17, 24, 32, 33)
"""The grid of N where none is given: both sides of what tiles of 4, 8 and 16 rows end at."""


WARMUP = {"openvino": 1}
"""Forwards over N before the one that is timed, of engines that make a forward ready anew whenever
its N is another than the last one's; its own loop pads drafts, so that N stays."""


class OwnFile(NamedTuple):
    """A user's file as something to measure."""

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
    positions: tuple[int, ...] | None,
    protocol: Timing,
    name: str | None = None,
) -> OwnFile:
    """Return the plan of measuring a file, and where its bytes lie.

    Without a release it is the engine's default one. All of the file's header is checked first.
    What the log calls its model follows from the file's name, unless a name is given. The engine
    says how many forwards warm a visit up.

    Raises
    ------
    ConfigError
        It is no GGUF file, is cut, lies or is one part of several, or there is no such release,
        axis or grid.
    EvidenceError
        It does not fit into memory, or its context does not hold L + N.
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
    """Return the release of an engine that is fetched ready to run, else its first one.

    Raises
    ------
    ConfigError
        No release of it is pinned.
    """
    known = builds(engine)
    ready = [release for release, build in known.items() if build.prebuilt]
    for release in (*ready, *known):
        return release
    raise ConfigError(
        f"{engine!r:.60} is no engine that is driven here",
        remedy=f"Choose {' or '.join(locked())}",
    )


def model_name(path: Path) -> str:
    """Return what a file's model is called in the log: its name in small letters."""
    plain = re.sub(r"[^a-z0-9]+", "_", path.stem.lower()).strip("_")
    return plain[:48] or "model"


def file_type(header: GgufHeader) -> str:
    """Return GGUF's name of what a file stores, else the type that most of its bytes are in."""
    named = header.file_type or next(iter(bytes_by_type(header)), "f32")
    return re.sub(r"[^a-z0-9]+", "_", named.lower()).strip("_")
