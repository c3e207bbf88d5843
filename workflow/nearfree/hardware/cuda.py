"""What an NVIDIA GPU is: its fingerprint, as torch reports it."""

from nearfree.errors import HardwareError
from nearfree.log.events import Fingerprint


def fingerprint() -> Fingerprint:
    """Return what makes the first visible GPU the same platform tomorrow.

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
