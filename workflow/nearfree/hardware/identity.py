"""Identity: a machine is measured as the platform that the log knows, or not at all."""

from collections.abc import Sequence

from nearfree.errors import EvidenceError, HardwareError
from nearfree.hardware import cpu, cuda
from nearfree.hardware.platforms import as_alias
from nearfree.log.events import Fingerprint, HardwareProbed
from nearfree.log.evidence import read_scope
from nearfree.log.names import Layout

STREAM = "hardware"


def machine_fingerprint(kind: str) -> Fingerprint:
    """Return the fingerprint of this machine's CPU or first GPU; HardwareError without one."""
    return cpu.fingerprint() if kind == "cpu" else cuda.fingerprint()


def known_probe(layout: Layout, scope: str) -> HardwareProbed | None:
    """Return the first probe on record for a platform, None before its first."""
    for take in read_scope(layout, scope, stream=STREAM):
        for event in take.of(HardwareProbed):
            probe: HardwareProbed = event.data
            return probe
    return None


def check_identity(layout: Layout, scope: str, here: Fingerprint) -> None:
    """Raise HardwareError if this machine is not the one that a platform's probe describes."""
    probe = known_probe(layout, scope)
    if probe is None:
        return
    known = probe.fingerprint
    if known != here:
        differing = [f for f in known.__struct_fields__ if getattr(known, f) != getattr(here, f)]
        field = differing[0]
        raise HardwareError(
            f"this machine is not the platform {scope!r} of the log: {field} is "
            f"{getattr(here, field)!r}, not {getattr(known, field)!r}",
            remedy=f"Add `{scope}_2: {{kind: {here.kind}}}` to config/platforms.yaml and set "
            f"`here: [{scope}_2]` in config/config.yaml",
        )


def check_device(scope: str, here: Fingerprint, names: Sequence[str]) -> None:
    """Raise HardwareError if the driver's name of this device is none of a platform's.

    Parameters
    ----------
    names
        As `driver_names` gives them; none where no document tells the platform's.
    """
    if names and as_alias(here.model) not in names:
        raise HardwareError(
            f"this device calls itself {here.model!r}, which is not the platform {scope!r}",
            remedy="On a cluster, set gpu_model or the partition in config/cluster.yaml; else name "
            "the platform that it is as `here`, or add one to config/platforms.yaml",
        )


def require_probe(layout: Layout, scope: str) -> HardwareProbed:
    """Return a platform's probe; EvidenceError if nothing was probed yet."""
    probe = known_probe(layout, scope)
    if probe is None:
        raise EvidenceError(
            f"the log holds no probe of {scope}", remedy=f"Run `nearfree probe {scope}` first"
        )
    return probe
