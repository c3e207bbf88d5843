"""A simulated machine: a curve file with the facts of a datasheet and T(N) of settings.

`nearfree predict --curves` writes the file; timings on the machine have the origin `simulated`.
"""

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Literal

from msgspec import Meta, Struct, json, structs

from nearfree.core.names import Name
from nearfree.core.plan import ProbePlan
from nearfree.core.precision import Dtype
from nearfree.core.protocols import Natural, Positive
from nearfree.core.setting import Setting
from nearfree.errors import ConfigError, EvidenceError
from nearfree.hardware.identity import STREAM, check_identity
from nearfree.hardware.platforms import Amount
from nearfree.log.events import BandwidthPeak, ComputePeak, Fingerprint, HardwareProbed
from nearfree.log.evidence import refuse_mixed
from nearfree.log.line import sha256
from nearfree.log.names import Layout
from nearfree.log.reader import UNREADABLE
from nearfree.log.seal import Seal
from nearfree.log.take import ensure_events, take_name
from nearfree.units import GFLOP_PER_TFLOP

MOST_BYTES = 256 * 1024**2


class Curve(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """T(N) of one module in microseconds, with N rising.

    `release` is the package and version of the rules. `block_rows` are the rows of its blocks or
    tiles by N, `rows_per_position` the rows per position.
    """

    setting: Setting
    release: str | None = None
    n: Annotated[tuple[Positive, ...], Meta(min_length=1)]
    latency_us: tuple[Amount, ...]
    block_rows: tuple[Positive, ...] = ()
    rows_per_position: tuple[Positive, ...] = ()

    def __post_init__(self) -> None:
        if any(before >= after for before, after in pairwise(self.n)):
            raise ValueError(f"N {list(self.n)} does not rise")
        for values in (
            self.latency_us,
            self.block_rows or self.n,
            self.rows_per_position or self.n,
        ):
            if len(values) != len(self.n):
                raise ValueError(f"there are {len(values)} values for {len(self.n)} N")


class Part(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A module of a model, with its count per forward."""

    role: str
    count: Positive
    setting: Setting


class Forward(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A model's forward: its T(N) is the sum of its modules' curves."""

    setting: Setting
    parts: Annotated[tuple[Part, ...], Meta(min_length=1)]


class Refused(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A setting for which the predictor has no T(N), and the reason."""

    setting: Setting
    refusal: str


class CurveFile(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The output of `nearfree predict --curves` for a platform: facts, T(N), and their sources.

    `dtype` is the meaning of a study's `auto`; `peak_tflops` is phi by dtype; `cores` are SMs.
    `releases` are the versions of the packages that the machine simulates, `calibrations` the
    events of the predictor's constants, and `code` a digest of the code that computed the curves.
    """

    form: Literal[1] = 1
    platform: Name
    device: str
    dtype: Dtype
    features: tuple[str, ...] = ()
    cores: Positive
    cache_bytes: Natural = 0
    peak_tflops: dict[str, Amount]
    bandwidth_gb_s: Amount
    predictor: str
    code: str
    releases: dict[str, str] = {}
    calibrations: dict[str, str] = {}
    curves: tuple[Curve, ...] = ()
    forwards: tuple[Forward, ...] = ()
    refused: tuple[Refused, ...] = ()


class Machine:
    """A simulated machine: a curve file and its digest, which plans contain."""

    def __init__(self, file: CurveFile, digest: str) -> None:
        self.file, self.digest = file, digest
        self._curves = {curve.setting: curve for curve in file.curves}
        self._forwards = {entry.setting: entry for entry in file.forwards}
        self._refused = {entry.setting: entry.refusal for entry in file.refused}

    @property
    def fingerprint(self) -> Fingerprint:
        """The fingerprint of the datasheet's device, marked as simulated."""
        return Fingerprint(
            kind="simulated",
            model=f"{self.file.device} (simulated)",
            features=self.file.features,
            cores=self.file.cores,
            caches={"l2": self.file.cache_bytes} if self.file.cache_bytes else {},
        )

    def parts(self, setting: Setting) -> tuple[tuple[int, Curve], ...]:
        """Return the curves whose weighted sum is a setting's T(N), each with its count.

        Raises
        ------
        EvidenceError
            The predictor refused the setting, or the file lacks it.
        """
        forward = self._forwards.get(setting)
        if forward is None:
            return ((1, self._curve(setting)),)
        return tuple((part.count, self._curve(part.setting)) for part in forward.parts)

    def _curve(self, setting: Setting) -> Curve:
        if setting in self._curves:
            return self._curves[setting]
        reason = self._refused.get(setting, "the curve file does not hold it")
        raise EvidenceError(
            f"no curve of {setting.module} on {setting.backend}, {self.file.platform}: {reason}",
            remedy="Leave the study out, or write the curves again: `nearfree predict --curves`",
        )

    def at(self, curve: Curve, n: int) -> float:
        """Return a curve's T(N) in microseconds; EvidenceError if it lacks that N."""
        if n not in curve.n:
            raise EvidenceError(
                f"the curve of {curve.setting.module} on {curve.setting.backend}, "
                f"{self.file.platform}, lacks N={n}",
                remedy="Write the curves again: `nearfree predict --curves`",
            )
        return curve.latency_us[curve.n.index(n)]

    def resolved(self, setting: Setting) -> Setting:
        """Return a setting with `auto` replaced by the dtype that it means here."""
        return (
            structs.replace(setting, dtype=self.file.dtype) if setting.dtype == "auto" else setting
        )


def read_machine(path: Path, platform: str) -> Machine:
    """Return the simulated machine of a curve file.

    Raises
    ------
    ConfigError
        The file cannot be read, is no curve file, or is for another platform.
    """
    raw, remedy = read_curves(path, platform), _write_remedy(platform)
    try:
        file = json.decode(raw, type=CurveFile)
    except UNREADABLE as error:
        raise ConfigError(f"{path} is no curve file: {error}", remedy=remedy) from error
    if file.platform != platform:
        raise ConfigError(f"{path} is for {file.platform}, not for {platform}", remedy=remedy)
    return Machine(file, sha256(raw))


def read_curves(path: Path, platform: str) -> bytes:
    """Return a curve file's bytes; ConfigError if they cannot be read."""
    remedy = _write_remedy(platform)
    try:
        if path.exists() and not path.is_file():
            raise ConfigError(f"{path} is no file", remedy=remedy)
        if path.stat().st_size > MOST_BYTES:
            raise ConfigError(f"{path} is too large for a curve file", remedy=remedy)
        return path.read_bytes()
    except OSError as error:
        reason = f"the curve file {path} cannot be read: {error.strerror}"
        raise ConfigError(reason, remedy=remedy) from error


def _write_remedy(platform: str) -> str:
    """Return the remedy that writes the curve file."""
    return f"Write it: `nearfree predict --curves FOLDER --platform {platform}`"


def simulate_probe(
    layout: Layout, scope: str, take: int, plan: ProbePlan, machine: Machine
) -> Seal:
    """Return the seal of a simulated platform's probe, which holds phi and beta of its datasheet.

    Raises
    ------
    ConfigError
        The plan was made with another curve file.
    HardwareError
        The datasheet differs from that of the machine on record.
    EvidenceError
        The root holds real measurements.
    """
    if plan.curves != machine.digest:
        raise ConfigError(
            f"the plan for the probe of {scope} is for another curve file", remedy="Probe it again"
        )
    refuse_mixed(layout, as_simulated=True)
    check_identity(layout, scope, machine.fingerprint)
    facts = machine.file

    def probed() -> Iterator[HardwareProbed]:
        yield HardwareProbed(
            fingerprint=machine.fingerprint,
            compute=tuple(
                ComputePeak(
                    dtype=dtype,
                    gflop_s=facts.peak_tflops[dtype] * GFLOP_PER_TFLOP,
                    size=0,
                    samples=(),
                    guarded=False,
                )
                for dtype in plan.dtypes
                if dtype in facts.peak_tflops
            ),
            bandwidth=(
                BandwidthPeak(method="stream", gb_s=facts.bandwidth_gb_s, bytes_read=0, samples=()),
            ),
            threads=1,
        )

    name, command = take_name(scope, STREAM, take, plan), f"nearfree probe {scope}"
    return ensure_events(layout, name, plan, command, probed, device=machine.fingerprint.model)
