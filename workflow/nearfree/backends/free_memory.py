"""The free memory of this machine."""

from pathlib import Path


def free_host_bytes() -> int | None:
    """Return the bytes available to programs, None if the system does not report them."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return None
    fields = dict(line.split(":", 1) for line in lines)
    return int(fields["MemAvailable"].split()[0]) * 1024 if "MemAvailable" in fields else None
