"""Which adapters have really run, as the log shows it."""

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
    """Return every module, backend and device of which the log holds a sealed run.

    A whole model proves what runs its experts as well.
    """
    runs: AdapterRuns = set()
    for scope in {take.scope for take in layout.takes()}:
        for take in read_scope(layout, scope):
            for event in take.of(LatencyMeasured):
                device = _DEVICE.get(event.data.timer)  # a simulated one proves nothing
                runs |= {(*part, device) for part in _parts(event.data.setting) if device}
    return runs


def _parts(setting: Setting) -> list[tuple[str, str]]:
    """Return module and backend of a setting, and of a model's experts."""
    experts = [("moe_ffn", setting.moe)] if setting.moe else []
    return [(setting.module, setting.backend), *experts]


def never_run(runs: AdapterRuns) -> list[tuple[Adapter, str]]:
    """Return the adapters, with the kind of device, that no run is of."""
    return [
        (adapter, device)
        for adapter in ADAPTERS
        for device in adapter.devices
        if (adapter.module, adapter.backend, device) not in runs
    ]


def refuse_never_run(layout: Layout, plan: MeasurePlan, device: str) -> None:
    """Raise EvidenceError if an adapter of a plan, or of a model's experts, never ran on a GPU.

    What runs on a CPU runs in this project's tests on every machine.
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
