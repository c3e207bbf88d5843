"""What instructions this machine's CPU has, as the operating system names them."""

from pathlib import Path

from nearfree.errors import HardwareError

CPUINFO = Path("/proc/cpuinfo")


def plain(flag: str) -> str:
    """Return a name of instructions without what spellings differ in: `avx512_bf16`, AVX512BF16."""
    return flag.strip().lower().replace("_", "").replace("-", "").replace(".", "")


def cpu_flags(path: Path = CPUINFO) -> frozenset[str]:
    """Return the flags of the first processor, spelt plainly.

    Raises
    ------
    HardwareError
        The system says none, as on other processors than x86-64.
    """
    try:
        lines = path.read_text().splitlines()
    except OSError as error:
        raise HardwareError(
            f"{path} says no flags of this CPU: {error.strerror}", remedy="Give --cpu-flags"
        ) from error
    for line in lines:
        key, _, value = line.partition(":")
        if key.strip() == "flags":
            return frozenset(map(plain, value.split()))
    raise HardwareError(f"{path} says no flags of this CPU", remedy="Give --cpu-flags")
