"""The system files of AIConfigurator: a GPU's facts, its name here, and where the two differ."""

import re
from collections.abc import Iterator, Mapping

from msgspec import Struct

from nearfree.core.setting import NAME
from nearfree.errors import ConfigError, SourceError
from nearfree.hardware.platforms import Platform, resolve
from nearfree.log.line import without_private
from nearfree.units import BYTES_PER_GB, GFLOP_PER_TFLOP

OTHER_VENDORS = {"b60": "an Intel GPU"}
"""Systems that are not NVIDIA's, and so are left out."""
SAME = 0.01
"""Up to this share two printed values of a fact are roundings of one another."""
_FLOP_PER_TFLOP = GFLOP_PER_TFLOP * 1e9
_PEAKS = {"bfloat16": "bfloat16_tc_flops", "float8": "fp8_tc_flops"}
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
        ),
        notice=without_private(notice[1].strip()),
    )


def differences(system: System, ours: Platform) -> Iterator[str]:
    """Yield each fact of a known platform for which the source has another value than we."""
    pairs = {"bandwidth, GB/s": (ours.bandwidth_gb_s, system.facts.bandwidth_gb_s)}
    for dtype, theirs in system.facts.peak_tflops.items():
        pairs[f"{dtype} peak, TFLOP/s"] = (ours.peak_tflops.get(dtype), theirs)
    for fact, (here, there) in pairs.items():
        if here is None:
            yield f"{system.platform}: {fact}: none here, {there:g} in {system.name}.yaml"
        elif there is not None and abs(there / here - 1.0) > SAME:
            yield f"{system.platform}: {fact}: {here:g} here, {there:g} in {system.name}.yaml"


def _odd(name: str, what: str) -> SourceError:
    return SourceError(
        f"the system file {name}.yaml {what}",
        remedy="Import a version whose form is known, such as 0.12.0",
    )
