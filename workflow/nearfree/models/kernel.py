"""A model as a kernel: one forward of all its layers over N positions, and its work."""

from collections.abc import Iterator
from typing import Literal

import torch
from msgspec import structs
from torch import Tensor

from nearfree.backends.adapters.kernel import ExecutionContext
from nearfree.backends.adapters.tensors import copies_for, torch_dtype
from nearfree.backends.adapters.torch_moe import core_of
from nearfree.config.model_studies import uses
from nearfree.core.modules.registry import kind_of
from nearfree.core.routing_names import ModelRouting
from nearfree.core.setting import Setting
from nearfree.core.work import ExecutedWork
from nearfree.decoders.model import Model, model_of
from nearfree.decoders.modules import NO_LAPS, Laps, ModuleUse
from nearfree.models.footprint import footprint, refuse_too_large
from nearfree.models.forward import DecoderForward
from nearfree.models.layers import RandomWeights

_SEED = 0


def bytes_read(setting: Setting, model: Model, n: int) -> tuple[int, int]:
    """Return the compulsory bytes of a forward over N, in total and of its largest module."""
    works = list(_works(setting, model, n))
    total = sum(work.bytes_compulsory * use.count for use, work in works)
    return total, max(work.bytes_compulsory for _, work in works)


def model_work(setting: Setting, model: Model, n: int) -> ExecutedWork:
    """Return the work of a forward over N positions per request.

    Padded rows are counted only for this project's own padding (`torch_padded`). Tokens of the
    model's own router are counted as if it used the experts evenly.
    """
    works = list(_works(setting, model, n))
    spread = ", experts as if evenly used" if setting.routing == "router" else ""
    return ExecutedWork(
        flop_logical=sum(work.flop_logical * use.count for use, work in works),
        flop_executed=sum(work.flop_executed * use.count for use, work in works),
        bytes_compulsory=sum(work.bytes_compulsory * use.count for use, work in works),
        basis=f"the sum of {len(works)} kinds of modules{spread}; no padding inside kernels",
    )


def _works(setting: Setting, model: Model, n: int) -> Iterator[tuple[ModuleUse, ExecutedWork]]:
    for use in uses(setting, model, spread="balanced"):
        yield use, _work(use.setting, n)


def _work(module: Setting, n: int) -> ExecutedWork:
    core = core_of(module.backend)
    rows = core.block_rows(module.batch * n, module.experts or 0) if core else None
    return kind_of(module).executed(module, n, "", rows=rows)


class ModelKernel:
    """A forward with random weights, which settings of one model share, and a random KV cache.

    Tokens are made in advance; a forward ends with the logits of all N positions.
    """

    def __init__(
        self, setting: Setting, positions: tuple[int, ...], execution: ExecutionContext
    ) -> None:
        model = model_of(setting, execution.models)
        self._setting, self._model, self._execution = setting, model, execution
        bytes_per_forward, largest = bytes_read(setting, model, min(positions))
        count = execution.copies or max(1, copies_for(bytes_per_forward, execution.cache_bytes) - 1)
        self._refuse_too_large(positions, count)
        bytes_between = count * bytes_per_forward - largest
        self.cache: Literal["cold", "warm"] = (
            "cold" if bytes_between >= execution.cache_bytes else "warm"
        )
        self._forwards = [self._make_forward(copy, max(positions)) for copy in range(count)]
        self._next_copy = 0
        generator = torch.Generator().manual_seed(_SEED)
        shape = (setting.batch, max(positions))
        tokens = torch.randint(model.decoder.vocabulary, shape, generator=generator)
        self._tokens = {n: tokens[:, :n].contiguous().to(execution.device) for n in positions}

    def _refuse_too_large(self, positions: tuple[int, ...], copies: int) -> None:
        """Raise EvidenceError unless it fits beside the tensors of other settings."""
        setting, decoder, execution = self._setting, self._model.decoder, self._execution
        needed = footprint(
            decoder,
            self._model.details,
            batch=setting.batch,
            context=setting.context or 0,
            positions=positions,
            dtype=torch_dtype(setting),
            device=execution.device,
            mask=setting.mask or "causal",
            routing=_routing(setting),
            attention=setting.backend,
            moe=setting.moe or "torch_padded",
            copies=copies,
        )
        allocated = {key[1] for key in execution.shared if key[0] == setting.model_digest}
        missing = max(0, copies - len(allocated))
        needed = structs.replace(needed, weights=needed.weights * missing // copies)
        refuse_too_large(
            needed,
            decoder,
            batch=setting.batch,
            context=setting.context or 0,
            max_positions=max(positions),
            device=execution.device,
        )

    def _make_forward(self, copy: int, max_positions: int) -> DecoderForward:
        setting, device = self._setting, self._execution.device
        dtype, shared = torch_dtype(setting), self._execution.shared
        key = (setting.model_digest, copy)
        return DecoderForward(
            self._model.decoder,
            self._model.details,
            RandomWeights(dtype, device, _SEED, shared, key),
            batch=setting.batch,
            context=setting.context or 0,
            max_positions=max_positions,
            dtype=dtype,
            device=device,
            mask=setting.mask or "causal",
            routing=_routing(setting),
            attention=setting.backend,
            moe=setting.moe or "torch_padded",
            shared=None if copy else shared,  # copies that take turns have their own caches
        )

    def forward(self, n: int, laps: Laps = NO_LAPS) -> Tensor:
        """Run one forward, [batch, N] tokens in, [batch, N, vocabulary] logits out."""
        forward = self._forwards[self._next_copy]
        self._next_copy = (self._next_copy + 1) % len(self._forwards)
        return forward.forward(self._tokens[n], laps)

    def work(self, n: int) -> ExecutedWork:
        """Return the work of all modules."""
        return model_work(self._setting, self._model, n)


_CONTROLLED: dict[str | None, ModelRouting] = {"balanced": "balanced", "skewed": "skewed"}


def _routing(setting: Setting) -> ModelRouting:
    return _CONTROLLED.get(setting.routing, "router")
