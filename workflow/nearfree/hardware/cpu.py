"""What a CPU is: its fingerprint, from the operating system alone."""

import os
import platform
import subprocess
from pathlib import Path

from nearfree.log.events import Fingerprint

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


def fingerprint() -> Fingerprint:
    """Return what makes this CPU the same platform tomorrow: no load, kernel or memory size."""
    model, features = _linux() if Path("/proc/cpuinfo").exists() else _darwin()
    return Fingerprint(
        kind="cpu",
        model=model,
        features=tuple(sorted(features)),
        cores=os.cpu_count() or 1,
        caches=_caches(),
    )


def native_dtype(print_: Fingerprint) -> str:
    """Return bfloat16 where the CPU has instructions for it, else float32."""
    return "bfloat16" if _NATIVE_BF16.intersection(print_.features) else "float32"


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

    found = {"bf16"} if read("hw.optional.arm.FEAT_BF16") == "1" else set()
    return read("machdep.cpu.brand_string") or platform.machine(), frozenset(found)


def _caches() -> dict[str, int]:
    found = {}
    for folder in sorted(_CACHE.glob("index*")):
        level = (folder / "level").read_text().strip()
        kind = (folder / "type").read_text().strip()
        size = (folder / "size").read_text().strip()
        name = f"l{level}" + {"Data": "d", "Instruction": "i"}.get(kind, "")
        found[name] = int(size[:-1]) * _UNITS[size[-1]] if size[-1] in _UNITS else int(size)
    return found
