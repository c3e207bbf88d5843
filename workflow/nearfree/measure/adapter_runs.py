"""The adapters that have run, according to the log."""

from nearfree.backends.adapters.kernel import ADAPTERS, Adapter
from nearfree.core.plan import MeasurePlan
from nearfree.core.setting import Setting
from nearfree.errors import EvidenceError
from nearfree.log.events import LatencyMeasured
from nearfree.log.evidence import read_scope
from nearfree.log.names import Layout

AdapterRuns = set[tuple[str, str, str]]
"""Module, backend and kind of device."""
_DEVICE = {"cpu": "cpu", "cuda_events": "cuda"}


def adapter_runs(layout: Layout) -> AdapterRuns:
    """Return every module, backend and device with a sealed run in the log.

    A run of a whole model also counts for the backend of its experts.
    """
    runs: AdapterRuns = set()
    for scope in {take.scope for take in layout.takes()}:
        for take in read_scope(layout, scope):
            for event in take.events_of(LatencyMeasured):
                device = _DEVICE.get(event.data.timer)  # a simulated timer runs no adapter
                runs |= {(*adapter, device) for adapter in _parts(event.data.setting) if device}
    return runs


def _parts(setting: Setting) -> list[tuple[str, str]]:
    """Return the module and backend of a setting, and those of a model's experts."""
    experts = [("moe_ffn", setting.moe)] if setting.moe else []
    return [(setting.module, setting.backend), *experts]


def untested_adapters(runs: AdapterRuns) -> list[tuple[Adapter, str]]:
    """Return the adapters that have no run, each with the kind of device."""
    return [
        (adapter, device)
        for adapter in ADAPTERS
        for device in adapter.devices
        if (adapter.module, adapter.backend, device) not in runs
    ]


def refuse_never_run(layout: Layout, plan: MeasurePlan, device: str) -> None:
    """Raise EvidenceError if an adapter of a plan, or of a model's experts, never ran on a GPU.

    On a CPU nothing is refused: the tests run every CPU adapter.
    """
    if device == "cpu":
        return
    runs = adapter_runs(layout)
    for module, backend in (part for sweep in plan.sweeps for part in _parts(sweep.setting)):
        if (module, backend, device) not in runs:
            raise EvidenceError(
                f"the adapter of {module} on {backend} has never run on a GPU: "
                "the log holds no sealed take of it",
                remedy="Check its first results against a reference, and give --untested "
                "(or `untested: true` in config/config.yaml)",
            )
