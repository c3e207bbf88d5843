"""Which adapters have really run, as the log shows it."""

from nearfree.errors import EvidenceError
from nearfree.events.evidence import read_scope
from nearfree.events.names import Layout
from nearfree.events.types import LatencyMeasured
from nearfree.kernels import ADAPTERS, Adapter
from nearfree.settings import MeasurePlan

Tried = set[tuple[str, str, str]]
"""Module, backend and kind of device."""
_DEVICE = {"cpu": "cpu", "cuda_events": "cuda"}


def tried(layout: Layout) -> Tried:
    """Return every module, backend and device of which the log holds a sealed run."""
    found: Tried = set()
    for scope in {take.scope for take in layout.takes()}:
        for take in read_scope(layout, scope):
            for event in take.of(LatencyMeasured):
                setting = event.data.setting
                found.add((setting.module, setting.backend, _DEVICE[event.data.timer]))
    return found


def never_run(found: Tried) -> list[tuple[Adapter, str]]:
    """Return the adapters, with the kind of device, that are not among those tried."""
    return [
        (adapter, device)
        for adapter in ADAPTERS
        for device in adapter.devices
        if (adapter.module, adapter.backend, device) not in found
    ]


def refuse_untried(layout: Layout, plan: MeasurePlan, device: str) -> None:
    """Raise EvidenceError if a plan's adapter has never run on a GPU.

    What runs on a CPU runs in this project's tests on every machine.
    """
    if device == "cpu":
        return
    found = tried(layout)
    for sweep in plan.sweeps:
        setting = sweep.setting
        if (setting.module, setting.backend, device) not in found:
            raise EvidenceError(
                f"the adapter of {setting.module} on {setting.backend} has never run on a GPU: "
                "the log holds no sealed take of it",
                remedy="Check its first results against a reference, and give --untested "
                "(or `untested: true` in config/config.yaml)",
            )
