"""The kernels that are measured: one adapter per module and backend, with one interface."""

from collections.abc import Callable, Mapping
from importlib.util import find_spec
from inspect import signature
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

from msgspec import Struct, field, structs

from nearfree.backends.record import Device
from nearfree.backends.records import BACKENDS, BY_NAME, in_models, load
from nearfree.core.modules.attention import ATTENTION
from nearfree.core.setting import WHOLE, Module, Setting
from nearfree.core.weights import AnyWeights
from nearfree.core.work import ExecutedWork
from nearfree.errors import EvidenceError

if TYPE_CHECKING:
    from torch import Tensor
else:
    Tensor = object


TURNING = 64 * 2**20
"""Most bytes that rotating copies fill, if the last-level cache is larger or its size unknown."""
Positions = tuple[int, ...]
"""Every N that a kernel runs."""


class ExecutionContext(Struct, frozen=True, kw_only=True):
    """The device that a kernel runs on, and the tensors that kernels share."""

    device: str = "cpu"
    copies: int = 1
    """Copies of weights, or of keys and values, that rotate; 0: as many as make reads cold."""
    cache_bytes: int = 0
    """The size of the last-level cache, which decides whether the copies are read cold."""
    sms: int | None = None
    """A GPU's SMs."""
    shared: dict[tuple[object, ...], "Tensor"] = field(default_factory=dict)
    """Weights, caches and workspaces that settings share; settings never run concurrently."""
    models: Mapping[str, Any] = {}
    """The models of the plan, by name, as plain data."""
    weights: Mapping[str, AnyWeights] = {}
    """The weights that an engine runs, by name."""
    files: Mapping[str, Path] = {}
    """Paths of the user's own weight files, by SHA-256."""


class Kernel(Protocol):
    """One setting with everything allocated, ready to run a forward over N positions."""

    cache: Literal["cold", "warm"]
    """Whether a forward reads its weights from memory or from the last-level cache."""

    def forward(self, n: int) -> "Tensor":
        """Run one forward over N positions per request, and return its output."""

    def work(self, n: int) -> ExecutedWork:
        """Return the work that this forward executes."""


def accepted(function: Callable[..., Any], **arguments: Any) -> dict[str, Any]:
    """Return the arguments that a function of the installed release has parameters for."""
    parameters = signature(function).parameters
    return {name: value for name, value in arguments.items() if name in parameters}


class Adapter(Struct, frozen=True, kw_only=True):
    """The class that runs a module on a backend, its devices and its environment."""

    module: Module
    backend: str
    class_path: str
    """Python module and class, as `nearfree.backends.adapters.torch_dense:TorchDenseFfn`."""
    devices: tuple[Device, ...]
    package: str
    """The Python package that it calls."""
    environment: str
    """The lock under envs/ that has that package."""


ADAPTERS = tuple(
    Adapter(
        module=module,
        backend=backend.name,
        class_path=class_path,
        devices=backend.devices,
        package=backend.imported or backend.package,
        environment=backend.environment,
    )
    for backend in BACKENDS
    for module, class_path in backend.modules.items()
    if class_path and backend.environment
)
ADAPTERS += tuple(
    structs.replace(adapter, module="model", class_path="nearfree.models.kernel:ModelKernel")
    for adapter in ADAPTERS
    if adapter.module == ATTENTION.name and adapter.backend in in_models(ATTENTION.name)
)


def find_adapter(module: Module, backend: str, device: str) -> Adapter:
    """Return the adapter of a module; EvidenceError if none runs it on that device."""
    for adapter in ADAPTERS:
        if (adapter.module, adapter.backend) == (module, backend):
            break
    else:
        raise EvidenceError(
            f"no adapter runs {module} on {backend}",
            remedy=f"Choose from {', '.join(f'{a.module}/{a.backend}' for a in ADAPTERS)}",
        )
    if device not in adapter.devices:
        raise EvidenceError(
            f"{backend} runs {module} on {' and '.join(adapter.devices)}, not on {device}",
            remedy="Measure this study on another platform, or choose another backend",
        )
    return adapter


def adapters_of(setting: Setting, device: str) -> list[Adapter]:
    """Return the adapter of a setting, and for a model also that of its experts.

    Raises
    ------
    EvidenceError
        No adapter runs the module on that device, the adapter does not take the weights' format,
        or its package is not installed.
    """
    adapters = [find_adapter(setting.module, setting.backend, device)]
    if setting.moe:
        adapters.append(find_adapter("moe_ffn", setting.moe, device))
    for adapter in adapters:
        _refuse_weights(setting, adapter.backend, device)
        if find_spec(adapter.package) is None:
            raise EvidenceError(
                f"{adapter.backend} needs the package {adapter.package}, "
                "which is not installed here",
                remedy=f"Run `nearfree environment make {adapter.environment}`, or name another "
                "interpreter made from that lock under `python:` in config/config.yaml",
            )
    return adapters


def _refuse_weights(setting: Setting, backend: str, device: str) -> None:
    formats = BY_NAME[backend].weights.get(device, ())
    if setting.weights is not None and setting.weights not in formats:
        raise EvidenceError(
            f"{backend} runs {setting.module} on {device} with no weights stored as "
            f"{setting.weights}",
            remedy=f"Choose from {', '.join(formats) or 'none'}, or leave `weights` out",
        )


def make_kernel(setting: Setting, positions: Positions, execution: ExecutionContext) -> Kernel:
    """Return a setting's kernel, allocated for all its N.

    Raises
    ------
    EvidenceError
        No adapter runs this module on this backend and device, its package is not installed or
        does not load, or the setting does not fit into memory (nothing is allocated then).
    """
    adapter, *_ = adapters_of(setting, execution.device)
    if setting.module not in WHOLE:  # models and engines check their memory themselves
        from nearfree.backends.adapters.memory import refuse_too_large

        refuse_too_large(setting, positions, execution)
    try:
        kernel: Kernel = load(adapter.class_path)(setting, positions, execution)
    except ImportError as error:
        raise EvidenceError(
            f"{setting.backend} does not load here: {(str(error) or 'no reason').splitlines()[0]}",
            remedy=f"Run `nearfree environment make {adapter.environment}`, whose packages go "
            "together, and compare the GPU's driver with them",
        ) from error
    return kernel
