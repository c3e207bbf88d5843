"""What is said of a backend in its record."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from nearfree.core.setting import Module

Device = Literal["cpu", "cuda"]


class Rules(NamedTuple):
    """The rules that releases of a backend's package state for its block or tile."""

    package: str
    """PyPI's name of the package."""
    reader: str
    """The module of `nearfree.sources.backends` that reads it."""
    form: int = 1
    """The form of what is read: another form is another plan."""
    triton: Mapping[str, str] = {}
    """The Triton that a release's requirements pin, by release; which tuned file is opened depends
    on it."""


class Backend(NamedTuple):
    """One backend, in this project's name."""

    name: str
    modules: "Mapping[Module, str | None]"
    """The class that runs each module, None where rules alone are read."""
    names: tuple[str, ...] = ()
    """What users call it: its own name and its package's, with hyphens; none where it is no choice
    of a deployment."""
    in_model: str | None = None
    """What runs it inside a whole model's forward; None where nothing does."""
    devices: tuple[Device, ...] = ("cuda",)
    weights: Mapping[str, tuple[str, ...]] = {}
    """Formats of stored weights that it takes besides the element type, by device."""
    package: str = "torch"
    """PyPI's name of the package that it calls."""
    imported: str = "torch"
    """The same as Python imports it."""
    environment: str | None = None
    """The lock under envs/ that has the package; None where nothing runs it."""
    releases: tuple[str, str] | None = None
    """The first and the last release whose calls the adapter is checked against."""
    rules: Rules | None = None
    engine: str | None = None
    """The backend of experts whose engine's own choice it is, of quantised products or latents."""
    capabilities: frozenset[int] | None = None
    """Compute capabilities, 90 for 9.0, that it has kernels for, where its rules do not ask."""
    api: str | None = None
    """The call that serving makes of it, where its rules depend on the call."""
    vllm_api: str | None = None
    """The call that vLLM makes of it, where it is another."""
    kernels: Literal["fa2", "fa3"] | None = None
    """Which of FlashInfer's kernels it runs."""
    page_size: int | None = None
    """Positions of a page of the KV cache, where its kernel depends on there being pages."""
    widest: int = 256
    """Elements of the widest head of attention that it has kernels for."""
    sinks: bool = False
    """Whether its kernels take a logit of each head that is no position's."""
    values_apart: bool = False
    """Whether an engine runs it for values that are not as wide as keys, and its tile for them is
    read. On Blackwell engines run FlashAttention 4, whose tile is not: `get_flash_attn_version` in
    vllm/v1/attention/backends/fa_utils.py of vLLM 0.33.0, and models/mimo_v2.py there."""
    caches: tuple[str, ...] | None = None
    """Formats of a cache, besides the element type, whose tiles its rules say; None where not
    read, empty where its kernels take none."""
    vllm_file: str | None = None
    """The file of vLLM's own backend of attention that runs its kernels, where one does."""
    printed: Mapping[str, str] = {}
    """The release that the paper's tables are of, by the backend's name in them."""
