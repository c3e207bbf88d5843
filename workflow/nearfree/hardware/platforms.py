"""Datasheet facts of the known platforms, each with its source document."""

import re
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Literal

from msgspec import Meta, Struct

from nearfree.core.names import Name
from nearfree.core.precision import FORMATS
from nearfree.errors import ConfigError
from nearfree.units import balance_flop_per_byte

Amount = Annotated[float, Meta(gt=0, lt=1e12)]
Count = Annotated[int, Meta(ge=1, lt=1_000_000)]
PCIE_GPUS = 8
"""The assumed number of GPUs of a machine with PCIe, where the builder chooses their number."""
DIRECT_GPUS = 2
"""The assumed number of GPUs with peer-to-peer access over PCIe, where it is not given: two GPUs of
public tables have it, and more GPUs of most of L40S's do not (AIConfigurator 0.12.0)."""
_NO_FACTS = frozenset({"kind", "vendor_name", "aliases", "sources", "unknown"})
_PEAKS = tuple(dict.fromkeys(format_.peak for format_ in FORMATS.values()))


class Platform(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """One kind of machine; a fact that no trustworthy document gives is None.

    `peak_tflops` is phi by dtype, dense. `bandwidth_gb_s` is beta in decimal GB/s. Caches and
    shared memory are in binary units, memory in decimal GB as vendors print it. `nvlink` is the
    generation of NVLink between the `node_gpus` GPUs of a node, None if they communicate over PCIe.
    `machine_gpus` are the GPUs of one operating system, if a node has several. `direct_gpus` is the
    number of GPUs with peer-to-peer access over PCIe; more GPUs share one path through the host.
    `nvlink_gb_s`, `pcie_gb_s` and, between nodes, `network_gb_s` are one-way bandwidths. `host_cpu`
    is the CPU that the product includes, None if buyers choose it. `device_name` is the driver's
    name of the device, by which backends look for tuned files. For AMD's GPUs, `rocm`, `sm_count`
    counts compute units and there is no `sm`: they are not measured, and no backend's rule covers
    them.
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
        """Return phi in TFLOP/s by a format or by the name of a peak; None if unknown."""
        return self.peak_tflops.get(FORMATS[dtype].peak if dtype in FORMATS else dtype)

    def lacks(self, dtype: str) -> bool:
        """Return whether it is known that the platform has no units for a dtype."""
        unknown = f"peak_tflops.{FORMATS[dtype].peak}" in self.unknown
        return bool(self.peak_tflops) and self.peak(dtype) is None and not unknown

    @property
    def link_gb_s(self) -> float | None:
        """One-way bandwidth of a GPU to the others of its node: of NVLink, else of PCIe."""
        return self.nvlink_gb_s or self.pcie_gb_s

    @property
    def joined_gpus(self) -> int | None:
        """Number of GPUs that its links connect: of a node, else the assumed number with PCIe.

        It is None for a GPU that the product includes with a CPU and without such links.
        """
        over_pcie = (self.nvlink, self.host_cpu) == (None, None) and self.pcie_gb_s is not None
        return self.node_gpus or (PCIE_GPUS if over_pcie else None)

    @property
    def direct(self) -> int | None:
        """Number of GPUs with peer-to-peer access over PCIe; None if NVLink connects them."""
        return None if self.nvlink else self.direct_gpus or DIRECT_GPUS

    def balance(self, dtype: str) -> float | None:
        """Return rho = phi / beta of a dtype in FLOP per byte; None if either is unknown."""
        peak = self.peak(dtype)
        if peak is None or self.bandwidth_gb_s is None:
            return None
        return balance_flop_per_byte(peak, self.bandwidth_gb_s)


def check_platforms(platforms: dict[str, Platform], file: Path) -> None:
    """Raise ConfigError for a fact without a source, an unknown fact, or a name used twice.

    A misspelt peak would otherwise mean that the platform has no units for the format.
    """
    owners: dict[str, str] = {}
    facts = sorted(set(Platform.__struct_fields__) - _NO_FACTS)
    known = {*facts, *(f"peak_tflops.{peak}" for peak in _PEAKS)}
    for name, platform in platforms.items():
        for alias in (name, *platform.aliases):
            if alias in owners:
                raise ConfigError(
                    f"{file}: {name} and {owners[alias]} share the name {alias}",
                    remedy="Give each platform its own names",
                )
            owners[alias] = name
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
    """Return the names of a platform's device in drivers, as aliases; empty if unknown."""
    if platform.device_name is None:
        return ()
    return (name, *platform.aliases, as_alias(platform.device_name))


def as_alias(device: str) -> str:
    """Return a device's name written like an alias: in lower case, other characters as `_`."""
    return "_".join(re.findall(r"[a-z0-9]+", device.lower()))


def resolve(platforms: dict[str, Platform], name: str) -> str:
    """Return the platform of a name or alias, in any case, with spaces or `-` for `_`.

    Raises
    ------
    ConfigError
        There is no such platform; the error gives the nearest names.
    """
    normalised = re.sub(r"[ -]+", "_", name.lower())
    owners = {
        alias: owner
        for owner, platform in platforms.items()
        for alias in (owner, *platform.aliases)
    }
    if owner := owners.get(name) or owners.get(normalised):
        return owner
    near = dict.fromkeys(owners[alias] for alias in get_close_matches(normalised[:80], owners, n=5))
    nearest = f"Nearest are {', '.join(near)}. " if near else ""
    raise ConfigError(
        f"unknown platform {name!r:.120}",
        remedy=f"{nearest}Choose one of {', '.join(platforms)}, or add it to platforms.yaml",
    )
