"""A machine's fingerprint, checked against the platform that the log records."""

import os
import platform
import subprocess
from collections.abc import Sequence
from pathlib import Path

from nearfree.errors import EvidenceError, HardwareError
from nearfree.hardware.platforms import as_alias
from nearfree.log.events import Fingerprint, HardwareProbed
from nearfree.log.evidence import read_scope, refuse_mixed
from nearfree.log.names import Layout

STREAM = "hardware"
"""The stream of a platform's probes."""
_FEATURES = frozenset(
    {
        *("avx2", "fma", "f16c", "avx512f", "avx512_bf16", "avx512_fp16", "avx512_vnni"),
        *("amx_tile", "amx_bf16", "amx_fp16"),
        *("asimd", "asimdhp", "bf16", "i8mm", "sve", "sve2"),
    }
)
_NATIVE_BF16 = frozenset({"avx512_bf16", "amx_bf16", "bf16"})
_CACHE = Path("/sys/devices/system/cpu/cpu0/cache")
_UNITS = {"K": 1024, "M": 1024**2, "G": 1024**3}


def cpu_fingerprint() -> Fingerprint:
    """Return the stable facts that identify this CPU: no load, kernel version or memory size."""
    model, features = _linux() if Path("/proc/cpuinfo").exists() else _darwin()
    return Fingerprint(
        kind="cpu",
        model=model,
        features=tuple(sorted(features)),
        cores=os.cpu_count() or 1,
        caches=_caches(),
    )


def native_dtype(fingerprint: Fingerprint) -> str:
    """Return the dtype that `auto` stands for: float32 on a CPU without bfloat16, else bfloat16."""
    lacks = fingerprint.kind == "cpu" and not _NATIVE_BF16.intersection(fingerprint.features)
    return "float32" if lacks else "bfloat16"


def _linux() -> tuple[str, frozenset[str]]:
    fields: dict[str, str] = {}
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        key, _, value = line.partition(":")
        fields.setdefault(key.strip().lower(), value.strip())
    model = fields.get("model name") or f"{platform.machine()} {fields.get('cpu part', 'unknown')}"
    flags = fields.get("flags") or fields.get("features") or ""
    return model, _FEATURES.intersection(flags.split())


def _darwin() -> tuple[str, frozenset[str]]:
    def read(name: str) -> str:
        done = subprocess.run(["sysctl", "-n", name], capture_output=True, text=True, check=False)
        return done.stdout.strip()

    features = {"bf16"} if read("hw.optional.arm.FEAT_BF16") == "1" else set()
    return read("machdep.cpu.brand_string") or platform.machine(), frozenset(features)


def _caches() -> dict[str, int]:
    caches = {}
    for folder in sorted(_CACHE.glob("index*")):
        level = (folder / "level").read_text().strip()
        kind = (folder / "type").read_text().strip()
        try:
            size = (folder / "size").read_text().strip()
        except OSError:  # some virtual machines do not report it
            continue
        name = f"l{level}" + {"Data": "d", "Instruction": "i"}.get(kind, "")
        caches[name] = int(size[:-1]) * _UNITS[size[-1]] if size[-1] in _UNITS else int(size)
    return caches


def cuda_fingerprint() -> Fingerprint:
    """Return the stable facts that identify the first visible GPU.

    Raises
    ------
    HardwareError
        torch is not installed, or sees no NVIDIA GPU.
    """
    try:
        import torch
    except ImportError:
        raise HardwareError(
            "torch is not installed", remedy="Install the environment that envs/ describes"
        ) from None
    if not torch.cuda.is_available():
        raise HardwareError(
            "there is no NVIDIA GPU here that torch can use",
            remedy="Run this on the GPU's machine, or set `here: [cpu]` in config/config.yaml",
        )
    facts = torch.cuda.get_device_properties(0)
    return Fingerprint(
        kind="cuda",
        model=facts.name,
        features=(f"sm_{facts.major}{facts.minor}",),
        cores=facts.multi_processor_count,
        caches={"l2": facts.L2_cache_size},
    )


def machine_fingerprint(kind: str) -> Fingerprint:
    """Return the fingerprint of this machine's CPU or first GPU; HardwareError without one."""
    if kind == "rocm":
        raise HardwareError(
            "AMD's GPUs are not measured: their platforms are datasheets",
            remedy="Choose a platform of kind cpu or cuda",
        )
    return cpu_fingerprint() if kind == "cpu" else cuda_fingerprint()


def known_probe(layout: Layout, scope: str) -> HardwareProbed | None:
    """Return the first probe on record for a platform, None before its first."""
    takes = read_scope(layout, scope, stream=STREAM)
    probes = (event.data for take in takes for event in take.events_of(HardwareProbed))
    probe: HardwareProbed | None = next(probes, None)
    return probe


def check_identity(layout: Layout, scope: str, fingerprint: Fingerprint) -> None:
    """Raise HardwareError if this machine differs from the one in the platform's probe."""
    probe = known_probe(layout, scope)
    if probe is None:
        return
    recorded = probe.fingerprint
    if recorded != fingerprint:
        fields = recorded.__struct_fields__
        field = next(f for f in fields if getattr(recorded, f) != getattr(fingerprint, f))
        raise HardwareError(
            f"this machine is not the platform {scope!r} of the log: {field} is "
            f"{getattr(fingerprint, field)!r}, not {getattr(recorded, field)!r}",
            remedy=f"Add `{scope}_2: {{kind: {fingerprint.kind}}}` to config/platforms.yaml and "
            f"set `here: [{scope}_2]` in config/config.yaml, or give another --results",
        )


def check_device(scope: str, fingerprint: Fingerprint, names: Sequence[str]) -> None:
    """Raise HardwareError if the driver's name of this device is no name of the platform.

    Parameters
    ----------
    names
        The names that `driver_names` returns; without any, the device is not checked.
    """
    if names and as_alias(fingerprint.model) not in names:
        raise HardwareError(
            f"this device calls itself {fingerprint.model!r}, which is not the platform {scope!r}",
            remedy="On a cluster, set gpu_model or the partition in config/cluster.yaml; otherwise "
            "name its platform as `here`, or add one to config/platforms.yaml",
        )


def this_machine(layout: Layout, scope: str) -> Fingerprint:
    """Return this machine's fingerprint, once it is known to be a platform that was probed.

    Raises
    ------
    EvidenceError
        The root holds simulated takes, or the platform was not probed yet.
    HardwareError
        This machine has no such device, or differs from the one in the platform's probe.
    """
    refuse_mixed(layout, as_simulated=False)
    fingerprint = machine_fingerprint(require_probe(layout, scope).fingerprint.kind)
    check_identity(layout, scope, fingerprint)
    return fingerprint


def require_probe(layout: Layout, scope: str) -> HardwareProbed:
    """Return a platform's first probe; EvidenceError if there is none."""
    probe = known_probe(layout, scope)
    if probe is None:
        raise EvidenceError(
            f"the log holds no probe of {scope}", remedy=f"Run `nearfree probe {scope}` first"
        )
    return probe
