"""Datasheet facts of the known platforms, each with the document that it was read from.

Shared memory by compute capability is from NVIDIA, CUDA C++ Programming Guide, "Technical
Specifications per Compute Capability", in bytes. The limit a block may opt in to is 1 KB below the
memory of an SM.
"""

import re
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Literal

from msgspec import Meta, Struct

from nearfree.core.names import Name
from nearfree.core.precision import FORMATS
from nearfree.errors import ConfigError, EvidenceError
from nearfree.units import balance_flop_per_byte

Amount = Annotated[float, Meta(gt=0, lt=1e12)]
Count = Annotated[int, Meta(ge=1, lt=1_000_000)]
PCIE_GPUS = 8
"""GPUs that meet over PCIe and are taken to fit one machine, where its builder chooses how many."""
DIRECT_GPUS = 2
"""GPUs that are taken to reach each other over PCIe without the host, where nobody says how many:
those of public tables do, and more of most of L40S's do not (AIConfigurator 0.12.0)."""
_NO_FACTS = frozenset({"kind", "vendor_name", "aliases", "sources", "unknown"})
_PEAKS = tuple(dict.fromkeys(each.peak for each in FORMATS.values()))


class Platform(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """One kind of machine; a fact that no trustworthy document gives is None.

    `peak_tflops` is phi by dtype, dense; `bandwidth_gb_s` is beta in decimal GB/s; caches and
    shared memory are in binary units, memory in decimal GB as vendors print it. `nvlink` is the
    generation of NVLink between a node's `node_gpus` GPUs, None where they meet over PCIe;
    `machine_gpus` are those of one operating system, where a node has several; `direct_gpus` how
    many reach each other over PCIe, beyond which all share one path through the host;
    `nvlink_gb_s`, `pcie_gb_s` and, between nodes, `network_gb_s` are one way; `host_cpu` is the CPU
    that the product joins to its GPUs, None where buyers choose it. `device_name` is
    what the driver calls the device: backends look for tuned files by it. Of `rocm`, AMD's GPUs,
    `sm_count` counts compute units, and there is no `sm`: nothing is measured on them, and no
    backend's rule answers for them.
    """

    kind: Literal["cpu", "cuda", "rocm"]
    vendor_name: str | None = None
    device_name: str | None = None
    aliases: tuple[Name, ...] = ()
    year: Count | None = None
    architecture: str | None = None
    sm: Count | None = None
    sm_count: Count | None = None
    boost_clock_mhz: Amount | None = None
    peak_tflops: dict[str, Amount] = {}
    bandwidth_gb_s: Amount | None = None
    l2_mib: Amount | None = None
    shared_memory_per_sm_kib: Amount | None = None
    shared_memory_per_block_kib: Amount | None = None
    memory_gb: Amount | None = None
    nvlink: Count | None = None
    nvlink_gb_s: Amount | None = None
    pcie_gb_s: Amount | None = None
    node_gpus: Count | None = None
    machine_gpus: Count | None = None
    direct_gpus: Count | None = None
    host_cpu: Literal["grace"] | None = None
    network_gb_s: Amount | None = None
    sources: dict[str, str] = {}
    unknown: tuple[str, ...] = ()

    def peak(self, dtype: str) -> float | None:
        """Return phi of products in a format, or of a peak's own name, TFLOP/s; None if unknown."""
        return self.peak_tflops.get(FORMATS[dtype].peak if dtype in FORMATS else dtype)

    def lacks(self, dtype: str) -> bool:
        """Return whether its units multiply no dtype: there are other peaks, and this is known."""
        unknown = f"peak_tflops.{FORMATS[dtype].peak}" in self.unknown
        return bool(self.peak_tflops) and self.peak(dtype) is None and not unknown

    @property
    def link_gb_s(self) -> float | None:
        """What a GPU sends to the others of its node, one way: over NVLink, else over PCIe."""
        return self.nvlink_gb_s or self.pcie_gb_s

    @property
    def joined_gpus(self) -> int | None:
        """GPUs that meet over its links: of a node, or where that is not fixed of PCIe's slots.

        A GPU that the product joins to a CPU of its own is in none.
        """
        over_pcie = (self.nvlink, self.host_cpu) == (None, None) and self.pcie_gb_s is not None
        return self.node_gpus or (PCIE_GPUS if over_pcie else None)

    @property
    def direct(self) -> int | None:
        """GPUs that are taken to reach each other over PCIe, None where NVLink joins them."""
        return None if self.nvlink else self.direct_gpus or DIRECT_GPUS

    def balance(self, dtype: str) -> float | None:
        """Return rho = phi / beta of a dtype in FLOP per byte, None without both facts."""
        peak = self.peak(dtype)
        if peak is None or self.bandwidth_gb_s is None:
            return None
        return balance_flop_per_byte(peak, self.bandwidth_gb_s)


def check_platforms(platforms: dict[str, Platform], file: Path) -> None:
    """Raise ConfigError for a fact without a source, or of no known name, or a shared name.

    A peak under another name than a format's would say that the units multiply no such format.

    Parameters
    ----------
    file
        Where they were read from, which a message begins with.
    """
    owner: dict[str, str] = {}
    facts = sorted(set(Platform.__struct_fields__) - _NO_FACTS)
    known = {*facts, *(f"peak_tflops.{peak}" for peak in _PEAKS)}
    for name, platform in platforms.items():
        for alias in (name, *platform.aliases):
            if alias in owner:
                raise ConfigError(
                    f"{file}: {name} and {owner[alias]} share the name {alias}",
                    remedy="Give each platform its own names",
                )
            owner[alias] = name
        for fact in (*(f"peak_tflops.{peak}" for peak in platform.peak_tflops), *platform.unknown):
            if fact not in known:
                raise ConfigError(
                    f"{file}: {name} names the unknown fact {fact!r:.80}",
                    remedy=f"Peaks are of {', '.join(_PEAKS)}; other facts {', '.join(facts)}",
                )
        for fact in facts:
            if getattr(platform, fact) and fact not in platform.sources:
                raise ConfigError(
                    f"{file}: {name}.{fact} has no source",
                    remedy="Name the document under `sources`",
                )


def driver_names(name: str, platform: Platform) -> tuple[str, ...]:
    """Return what a driver may call a platform's device, as aliases are written; none if unknown.

    Parameters
    ----------
    name
        The platform's own name.
    """
    if platform.device_name is None:
        return ()
    return (name, *platform.aliases, as_alias(platform.device_name))


def as_alias(device: str) -> str:
    """Return a device's name as aliases are written: lower case, the rest underscores."""
    return "_".join(re.findall(r"[a-z0-9]+", device.lower()))


def resolve(platforms: dict[str, Platform], name: str) -> str:
    """Return the platform that a name or alias means, in any case, with spaces or `-` for `_`.

    Raises
    ------
    ConfigError
        It means none, with the nearest names.
    """
    plain = re.sub(r"[ -]+", "_", name.lower())
    owner = {alias: known for known, of in platforms.items() for alias in (known, *of.aliases)}
    if found := owner.get(name) or owner.get(plain):
        return found
    near = dict.fromkeys(owner[alias] for alias in get_close_matches(plain[:80], owner, n=5))
    nearest = f"Nearest are {', '.join(near)}. " if near else ""
    raise ConfigError(
        f"unknown platform {name!r:.120}",
        remedy=f"{nearest}Choose one of {', '.join(platforms)}, or add it to platforms.yaml",
    )


class SharedMemory(Struct, frozen=True):
    """Shared memory of one SM, and the most that one block may opt in to, in bytes."""

    per_sm: int
    per_block: int


_KB_PER_SM = {75: 64, 80: 164, 86: 100, 87: 164, 89: 100, 90: 228, 100: 228, 103: 228, 120: 100}


def shared_memory(sm: int) -> SharedMemory:
    """Return the shared memory of a compute capability, written as 90 for 9.0.

    Raises
    ------
    EvidenceError
        The capability is not known here.
    """
    if sm not in _KB_PER_SM:
        known = ", ".join(map(str, sorted(_KB_PER_SM)))
        raise EvidenceError(
            f"the shared memory of compute capability {sm} is unknown",
            remedy=f"Ask for one of {known}",
        )
    size = _KB_PER_SM[sm]
    reserved = 0 if sm == 75 else 1
    return SharedMemory(per_sm=size * 1024, per_block=(size - reserved) * 1024)
