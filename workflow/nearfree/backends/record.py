"""The record of a backend: its fields."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from nearfree.core.setting import Module

Device = Literal["cpu", "cuda"]


class Rules(NamedTuple):
    """The rules for a block or tile that the source of a backend's package contains."""

    package: str
    """PyPI's name of the package."""
    reader: str
    """The module of `nearfree.sources.backends` that reads it."""
    form: int = 1
    """The version of the extraction's form; a new form makes a new plan."""
    triton: Mapping[str, str] = {}
    """The version of Triton that each release requires; it decides which tuned file is opened."""


class Backend(NamedTuple):
    """One backend, under this project's name."""

    name: str
    modules: "Mapping[Module, str | None]"
    """The class that runs each module, None if only its rules are read."""
    names: tuple[str, ...] = ()
    """Names that users write: its own and its package's, with hyphens; empty if a deployment cannot
    choose it."""
    in_model: str | None = None
    """The function or object that runs it inside a whole model's forward; None without one."""
    devices: tuple[Device, ...] = ("cuda",)
    weights: Mapping[str, tuple[str, ...]] = {}
    """Formats of stored weights that it takes besides the element type, by device."""
    package: str = "torch"
    """The package that it calls, by its name on PyPI."""
    imported: str = ""
    """The same package by its name in Python, if an adapter imports it by another."""
    environment: str | None = None
    """The lock under envs/ that has the package; None if no adapter runs it."""
    releases: tuple[str, str] | None = None
    """The first and the last release against whose signatures the adapter's calls are checked."""
    rules: Rules | None = None
    engine: str | None = None
    """The MoE backend whose engine selects this one for quantised products or latent attention."""
    capabilities: frozenset[int] | None = None
    """Compute capabilities, 90 for 9.0, that it has kernels for, if its rules do not test them."""
    api: str | None = None
    """The function that serving calls, if its rules depend on it."""
    vllm_api: str | None = None
    """The function that vLLM calls, if it is another."""
    kernels: Literal["fa2", "fa3"] | None = None
    """The set of FlashInfer's kernels that it runs."""
    page_size: int | None = None
    """Positions per page of the KV cache, if its kernel depends on paging."""
    widest: int = 256
    """The largest head size that it has kernels for."""
    sinks: bool = False
    """Whether its kernels take attention sinks: a logit per head that belongs to no position."""
    alibi: bool = False
    """Whether its kernels take a bias of logits by distance, and its tiles with it are read."""
    values_apart: bool = False
    """Whether an engine runs it for values of another width than keys, and its tile for them is
    read. On Blackwell engines run FlashAttention 4, whose tile is not: `get_flash_attn_version` in
    vllm/v1/attention/backends/fa_utils.py of vLLM 0.33.0, and models/mimo_v2.py there."""
    caches: tuple[str, ...] | None = None
    """Formats of a cache, besides the element type, for which its rules give tiles; None if not
    read, empty if its kernels take none."""
    vllm_file: str | None = None
    """The file of vLLM's attention backend that runs its kernels, if there is one."""
    printed: Mapping[str, str] = {}
    """The release measured in the paper's tables, by the backend's name there."""
