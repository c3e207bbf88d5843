"""What is run: one adapter a module and backend, all with the same interface."""

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Literal, Protocol

from msgspec import Struct, field

from nearfree.errors import EvidenceError
from nearfree.events.types import ExecutedWork
from nearfree.settings import Module, Setting

if TYPE_CHECKING:
    from torch import Tensor
else:
    Tensor = object

Device = Literal["cpu", "cuda"]


class Place(Struct, frozen=True, kw_only=True):
    """Where a kernel runs, and how much of it takes turns."""

    device: str = "cpu"
    copies: int = 1
    """Copies of weights, or of keys and values, that take turns."""
    cache_bytes: int = 0
    """The last-level cache, which decides whether those copies are read cold."""
    sms: int | None = None
    """A GPU's SMs."""
    shared: dict[tuple[object, ...], "Tensor"] = field(default_factory=dict)
    """Weights that settings of one shape have in common: they are only read."""


class Kernel(Protocol):
    """One setting with everything allocated, ready to run a forward over N positions."""

    cache: Literal["cold", "warm"]
    """Whether a forward finds its weights in memory or still in the last-level cache."""

    def forward(self, n: int) -> "Tensor":
        """Run one forward over N positions a request, and return its output."""

    def work(self, n: int) -> ExecutedWork:
        """Return what that forward executes."""


class Adapter(Struct, frozen=True, kw_only=True):
    """Which class runs a module on a backend, on what, and in which environment."""

    module: Module
    backend: str
    where: str
    """Module and class, as `nearfree.kernels.torch_dense:TorchDenseFfn`."""
    devices: tuple[Device, ...]
    package: str
    """The Python package that it calls."""
    environment: str
    """The lock under envs/ that has that package."""


_EVERYWHERE: tuple[Device, ...] = ("cpu", "cuda")
_GPU: tuple[Device, ...] = ("cuda",)
_ROWS: tuple[tuple[Module, str, str, tuple[Device, ...], str, str], ...] = (
    ("dense_ffn", "torch", "torch_dense:TorchDenseFfn", _EVERYWHERE, "torch", "cpu"),
    ("attention", "torch_sdpa", "torch_sdpa:TorchSdpa", _EVERYWHERE, "torch", "cpu"),
    ("moe_ffn", "torch_padded", "torch_moe:TorchPaddedMoe", _EVERYWHERE, "torch", "cpu"),
    ("moe_ffn", "torch_grouped", "torch_moe:TorchGroupedMoe", _EVERYWHERE, "torch", "cpu"),
    ("moe_ffn", "vllm", "vllm_moe:VllmMoe", _GPU, "vllm", "vllm"),
    ("moe_ffn", "sglang", "sglang_moe:SglangMoe", _GPU, "sglang", "sglang"),
    ("attention", "flash_attn", "flash_attn:FlashAttn", _GPU, "flash_attn", "flash_attn"),
    ("attention", "flash_attn_3", "flash_attn_3:FlashAttn3", _GPU, "xformers", "xformers"),
    ("attention", "flashinfer_fa2", "flashinfer:FlashInferFa2", _GPU, "flashinfer", "flashinfer"),
    ("attention", "flashinfer_fa3", "flashinfer:FlashInferFa3", _GPU, "flashinfer", "flashinfer"),
    (
        "attention",
        "flashinfer_decode",
        "flashinfer_decode:FlashInferDecode",
        _GPU,
        "flashinfer",
        "flashinfer",
    ),
)
ADAPTERS = tuple(
    Adapter(
        module=module,
        backend=backend,
        where=f"nearfree.kernels.{where}",
        devices=devices,
        package=package,
        environment=environment,
    )
    for module, backend, where, devices, package, environment in _ROWS
)


def find_adapter(setting: Setting, device: str) -> Adapter:
    """Return the adapter of a setting; EvidenceError if none runs it on that device."""
    for adapter in ADAPTERS:
        if (adapter.module, adapter.backend) == (setting.module, setting.backend):
            break
    else:
        raise EvidenceError(
            f"no adapter runs {setting.module} on {setting.backend}",
            remedy=f"Choose from {', '.join(f'{a.module}/{a.backend}' for a in ADAPTERS)}",
        )
    if device not in adapter.devices:
        raise EvidenceError(
            f"{setting.backend} runs {setting.module} on {' and '.join(adapter.devices)}, "
            f"not on {device}",
            remedy="Measure this study on another platform, or choose another backend",
        )
    return adapter


def make_kernel(setting: Setting, positions: tuple[int, ...], place: Place) -> Kernel:
    """Return a setting's kernel, allocated for all its N.

    Raises
    ------
    EvidenceError
        No adapter runs this module on this backend and device, its package is not installed, or
        what it needs does not fit into memory (nothing is allocated then).
    """
    from nearfree.kernels.memory import refuse_too_large

    adapter = find_adapter(setting, place.device)
    if find_spec(adapter.package) is None:
        raise EvidenceError(
            f"{setting.backend} needs the package {adapter.package}, which is not installed here",
            remedy=f"Use the environment envs/{adapter.environment}.lock: name its interpreter as "
            f"`python: {{{adapter.environment}: PATH}}` in config/config.yaml",
        )
    refuse_too_large(setting, positions, place)
    module, _, name = adapter.where.partition(":")
    kernel: Kernel = getattr(import_module(module), name)(setting, positions, place)
    return kernel
