"""The instruction sets of this machine's CPU, as the operating system names them."""

from pathlib import Path

from nearfree.errors import HardwareError

CPUINFO = Path("/proc/cpuinfo")


def plain(flag: str) -> str:
    """Return a normalised name of an instruction set: `avx512_bf16` and AVX512BF16 are equal."""
    return flag.strip().lower().replace("_", "").replace("-", "").replace(".", "")


def cpu_flags(path: Path = CPUINFO) -> frozenset[str]:
    """Return the normalised flags of the first processor.

    Raises
    ------
    HardwareError
        The system reports none, as on processors other than x86-64.
    """
    try:
        lines = path.read_text().splitlines()
    except OSError as error:
        raise HardwareError(
            f"{path} gives no flags of this CPU: {error.strerror}", remedy="Give --cpu-flags"
        ) from error
    for line in lines:
        key, _, value = line.partition(":")
        if key.strip() == "flags":
            return frozenset(map(plain, value.split()))
    raise HardwareError(f"{path} gives no flags of this CPU", remedy="Give --cpu-flags")
