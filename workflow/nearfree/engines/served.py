"""Forwards of serving engines on a GPU: the base of vLLM's and SGLang's model runners.

Weights are random, of a config.json's shapes, and drawn by the engine itself (`load_format` dummy).
A process holds one engine, so that a take has one setting.
"""

import hashlib
import os
import random
from abc import abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec

from nearfree.backends.adapters.kernel import ExecutionContext, Positions
from nearfree.backends.names import BackendRelease
from nearfree.backends.records import BY_NAME
from nearfree.core.modules.registry import kind_of
from nearfree.core.precision import uniform
from nearfree.core.setting import Setting
from nearfree.core.weights import RandomWeights
from nearfree.core.work import ExecutedWork, unpadded_work
from nearfree.decoders.config_file import read_decoder
from nearfree.decoders.decoder import Decoder
from nearfree.decoders.ranks.modules import modules
from nearfree.engines.forward import EngineKernel
from nearfree.errors import EvidenceError
from nearfree.log.events import EngineLoaded, EngineShape

_TYPES = {"bf16": "bfloat16", "f16": "float16"}
"""Element types by GGUF's name."""


class ServedForward(EngineKernel):
    """A forward of a serving engine's model runner, loaded once, over a persistent KV cache.

    Raises
    ------
    EvidenceError
        Another release is installed, the weights are not random ones of the setting's dtype, the
        model's context is shorter than L + 2 N, or the engine does not load the model.
    """

    def __init__(self, setting: Setting, positions: Positions, execution: ExecutionContext) -> None:
        self.setting, self.max_n = setting, max(positions)
        self.cached, self.batch = setting.context or 0, setting.batch
        self.capacity = self.cached + 2 * self.max_n  # the proposer needs space for its drafts, too
        weights = execution.weights[setting.model or ""]
        self._weights_digest = _check(setting, weights)
        config = weights.config if isinstance(weights, RandomWeights) else {}
        _refuse_too_long(setting, config, self.capacity)
        with TemporaryDirectory(prefix="nearfree-") as folder:  # the engine reads it by path
            Path(folder, "config.json").write_bytes(msgspec.json.encode(config))
            self._decoder = read_decoder(Path(folder))
            with refused(setting):
                self.start(folder)
        self._bytes = sum(tensor.numel() * tensor.element_size() for tensor in self.parameters())
        self.cache = "cold" if self._bytes > execution.cache_bytes else "warm"

    @abstractmethod
    def start(self, folder: str) -> None:
        """Load the model of a folder, and fill a cache of L positions for each request."""

    @abstractmethod
    def parameters(self) -> Iterator[Any]:
        """Yield the tensors of the weights."""

    @abstractmethod
    def describe(self) -> str:
        """Return the engine's choices that determine its kernels, in its own words."""

    def tokens(self, request: int, count: int) -> list[int]:
        """Return random tokens of a request, the same ones each time."""
        generator = random.Random(request)  # noqa: S311
        return [generator.randrange(self._decoder.vocabulary) for _ in range(count)]

    def work(self, n: int) -> ExecutedWork:
        """Return the work of the model's modules, without padding inside kernels."""
        return served_work(self.setting, self._decoder, n)

    def operations(self) -> tuple[str, ...]:
        """Return nothing: a profiler names a GPU's kernels."""
        return ()

    def loaded(self) -> EngineLoaded:
        """Return the event that records the engine and its model; no rule uses its matrices."""
        setting, decoder = self.setting, self._decoder
        return EngineLoaded(
            engine=setting.backend,
            release=setting.release or "",
            package=BY_NAME[setting.backend].package,
            library_sha256={},
            header_sha256={},
            system_info=self.describe(),
            model=setting.model or "",
            weights_sha256=self._weights_digest,
            weights_bytes=self._bytes,
            file_type=setting.file_type or "",
            repack=bool(setting.repack),
            matrices=(),
            shape=EngineShape(
                layers=decoder.layers,
                heads=decoder.heads,
                kv_heads=decoder.kv_heads,
                head_dim=decoder.head_dim,
                taken_experts=decoder.experts.top_k if decoder.experts else 1,
            ),
        )


def served_work(setting: Setting, decoder: Decoder, n: int) -> ExecutedWork:
    """Return the FLOPs and bytes of a decoder's forward over N, with balanced experts.

    Attention is counted as grouped-query attention, whatever kernel the engine selects.
    """
    uses = modules(
        decoder,
        batch=setting.batch,
        context=setting.context or 0,
        attention=BackendRelease("torch_sdpa"),
        moe=BackendRelease(setting.backend) if decoder.experts else None,
        routing="balanced" if decoder.experts else None,
        precision=uniform(setting.dtype),
    )
    works = [(use.count, kind_of(use.setting).executed(use.setting, n, "")) for use in uses]
    return unpadded_work(
        sum(count * work.flop_logical for count, work in works),
        sum(count * work.bytes_compulsory for count, work in works),
        f"the sum of {len(works)} kinds of modules; no padding inside kernels",
    )


@contextmanager
def refused(setting: Setting) -> Iterator[None]:
    """Convert an exception while an engine loads a model into one EvidenceError."""
    try:
        yield
    except (AssertionError, KeyError, OSError, RuntimeError, TypeError, ValueError) as error:
        is_runtime = isinstance(error, RuntimeError) and not isinstance(error, NotImplementedError)
        if is_runtime and "CUDA" in str(error):  # the GPU failed, not the model
            raise
        reason = " ".join(str(error).split()[-40:]) or type(error).__name__
        raise EvidenceError(
            f"{setting.backend} {setting.release} does not load {setting.model}: {reason}",
            remedy="Choose a model that this release serves on this GPU, or a smaller context",
        ) from error


@contextmanager
def variables(**values: str) -> Iterator[None]:
    """Set environment variables while an engine is loaded."""
    previous = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in previous.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _check(setting: Setting, weights: object) -> str:
    """Return the SHA-256 of the weights' definition; EvidenceError unless the engine draws them."""
    package = BY_NAME[setting.backend].package
    if (installed := version(package)) != setting.release:
        raise EvidenceError(
            f"{package} {installed} is installed, and the study asks for {setting.release}",
            remedy=f"Run `nearfree environment make {BY_NAME[setting.backend].environment}`",
        )
    stored = _TYPES.get(setting.file_type or "")
    if not isinstance(weights, RandomWeights) or stored != setting.dtype:
        raise EvidenceError(
            f"{setting.backend} draws weights of a config.json in {setting.dtype} itself, "
            f"and {setting.model} is {setting.file_type}",
            remedy="Name random weights of file_type bf16 with dtype bfloat16, or f16 with float16",
        )
    return hashlib.sha256(msgspec.json.encode(weights, order="deterministic")).hexdigest()


def _refuse_too_long(setting: Setting, config: dict[str, Any], positions: int) -> None:
    max_positions = config.get("max_position_embeddings")
    if isinstance(max_positions, int) and positions > max_positions:
        raise EvidenceError(
            f"L + 2 N = {positions} positions, for which the engine needs room, are more than "
            f"{setting.model}'s {max_positions}",
            remedy="Choose a smaller context or fewer positions",
        )
