"""A model as a kernel: one forward of all its layers over N positions, and its work."""

from typing import Any, Literal

import torch
from msgspec import structs
from torch import Tensor

from nearfree.backends.adapters.kernel import ExecutionContext, Positions
from nearfree.backends.adapters.tensors import copies_for, torch_dtype
from nearfree.backends.adapters.torch_moe import core_of
from nearfree.config.model_studies import uses
from nearfree.core.modules.registry import kind_of
from nearfree.core.routing_names import ModelRouting
from nearfree.core.setting import Setting
from nearfree.core.work import ExecutedWork
from nearfree.decoders.model import Model, model_of
from nearfree.decoders.ranks.modules import NO_LAPS, Laps
from nearfree.models.footprint import footprint, refuse_too_large
from nearfree.models.forward import DecoderForward
from nearfree.models.layers import RandomWeights

_SEED = 0
_CONTROLLED: dict[str | None, ModelRouting] = {"balanced": "balanced", "skewed": "skewed"}


def bytes_read(setting: Setting, model: Model, n: int) -> tuple[int, int]:
    """Return the compulsory bytes of a forward over N, in total and of its largest module."""
    works = _works(setting, model, n)
    total = sum(count * work.bytes_compulsory for count, work in works)
    return total, max(work.bytes_compulsory for _, work in works)


def model_work(setting: Setting, model: Model, n: int) -> ExecutedWork:
    """Return the work of a forward over N positions per request.

    Padded rows are counted only for this project's own padding (`torch_padded`). Tokens of the
    model's own router are counted as if it used the experts evenly.
    """
    works = _works(setting, model, n)
    spread = ", experts as if evenly used" if setting.routing == "router" else ""
    return ExecutedWork(
        flop_logical=sum(count * work.flop_logical for count, work in works),
        flop_executed=sum(count * work.flop_executed for count, work in works),
        bytes_compulsory=sum(count * work.bytes_compulsory for count, work in works),
        basis=f"the sum of {len(works)} kinds of modules{spread}; no padding inside kernels",
    )


def _works(setting: Setting, model: Model, n: int) -> list[tuple[int, ExecutedWork]]:
    """Return the number and the work of each kind of module."""
    kinds = uses(setting, model, spread="balanced")
    return [(use.count, _work(use.setting, n)) for use in kinds]


def _work(module: Setting, n: int) -> ExecutedWork:
    core = core_of(module.backend)
    rows = core.block_rows(module.batch * n, module.experts or 0) if core else None
    return kind_of(module).executed(module, n, "", rows=rows)


class ModelKernel:
    """A forward with random weights, which settings of one model share, and a random KV cache.

    Tokens are made in advance; a forward ends with the logits of all N positions.
    """

    def __init__(self, setting: Setting, positions: Positions, execution: ExecutionContext) -> None:
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

    @property
    def _arguments(self) -> dict[str, Any]:
        """The arguments of a forward, and so of its footprint, that the setting determines."""
        setting = self._setting
        return {
            "batch": setting.batch,
            "context": setting.context or 0,
            "dtype": torch_dtype(setting),
            "device": self._execution.device,
            "mask": setting.mask or "causal",
            "routing": _CONTROLLED.get(setting.routing, "router"),
            "attention": setting.backend,
            "moe": setting.moe or "torch_padded",
        }

    def _refuse_too_large(self, positions: Positions, copies: int) -> None:
        """Raise EvidenceError unless it fits beside the tensors of other settings."""
        setting, decoder, execution = self._setting, self._model.decoder, self._execution
        needed = footprint(
            decoder, self._model.details, positions=positions, copies=copies, **self._arguments
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
        dtype, execution = torch_dtype(self._setting), self._execution
        key = (self._setting.model_digest, copy)
        return DecoderForward(
            self._model.decoder,
            self._model.details,
            RandomWeights(dtype, execution.device, _SEED, execution.shared, key),
            max_positions=max_positions,
            shared=None if copy else execution.shared,  # copies in turn have their own caches
            **self._arguments,
        )

    def forward(self, n: int, laps: Laps = NO_LAPS) -> Tensor:
        """Run one forward, [batch, N] tokens in, [batch, N, vocabulary] logits out."""
        forward = self._forwards[self._next_copy]
        self._next_copy = (self._next_copy + 1) % len(self._forwards)
        return forward.forward(self._tokens[n], laps)

    def work(self, n: int) -> ExecutedWork:
        """Return the work of all modules."""
        return model_work(self._setting, self._model, n)
