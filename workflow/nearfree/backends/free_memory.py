"""The memory of a machine that is still free."""

from pathlib import Path


def free_host_bytes() -> int | None:
    """Return the bytes that programs can still take, None where the system does not tell."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    found = dict(line.split(":", 1) for line in lines)
    return int(found["MemAvailable"].split()[0]) * 1024 if "MemAvailable" in found else None
