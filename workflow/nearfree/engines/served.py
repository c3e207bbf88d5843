"""Forwards of serving engines on a GPU: what vLLM's and SGLang's model runners have in common.

Weights are random ones of a config.json, drawn by the engine itself (`load_format` dummy). A
process holds one engine, so that a take has one setting.
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

from nearfree.backends.adapters.kernel import ExecutionContext
from nearfree.backends.names import BackendRelease
from nearfree.backends.records import BY_NAME
from nearfree.core.modules.registry import kind_of
from nearfree.core.precision import uniform
from nearfree.core.setting import Setting
from nearfree.core.weights import RandomWeights
from nearfree.core.work import ExecutedWork
from nearfree.decoders.config_file import read_decoder
from nearfree.decoders.decoder import Decoder
from nearfree.decoders.modules import modules
from nearfree.engines.forward import EngineKernel
from nearfree.errors import EvidenceError
from nearfree.log.events import EngineLoaded, EngineShape

_TYPES = {"bf16": "bfloat16", "f16": "float16"}
"""Element types by GGUF's name of weights that are stored in them."""


class ServedForward(EngineKernel):
    """A forward of a serving engine's model runner, loaded once, over a cache that stays.

    Raises
    ------
    EvidenceError
        Another release is installed, the weights are none that it draws, the model's context is
        shorter than L + 2 N, or the engine does not take the model.
    """

    def __init__(
        self, setting: Setting, positions: tuple[int, ...], execution: ExecutionContext
    ) -> None:
        self.setting, self.most = setting, max(positions)
        self.cached, self.batch = setting.context or 0, setting.batch
        self.room = self.cached + 2 * self.most  # a proposer asks for room for its drafts, too
        weights = execution.weights[setting.model or ""]
        self._made_of = _check(setting, weights)
        config = weights.config if isinstance(weights, RandomWeights) else {}
        _refuse_too_long(setting, config, self.room)
        with TemporaryDirectory(prefix="nearfree-") as folder:  # the engine reads it by its path
            Path(folder, "config.json").write_bytes(msgspec.json.encode(config))
            self._decoder = read_decoder(Path(folder))
            with refused(setting):
                self.start(folder)
        self._bytes = sum(each.numel() * each.element_size() for each in self.parameters())
        self.cache = "cold" if self._bytes > execution.cache_bytes else "warm"

    @abstractmethod
    def start(self, folder: str) -> None:
        """Load the model of a folder, and fill a cache of L positions for each request."""

    @abstractmethod
    def parameters(self) -> Iterator[Any]:
        """Yield the tensors of the weights."""

    @abstractmethod
    def describe(self) -> str:
        """Return the engine's own choices that decide its kernels, as it names them."""

    def tokens(self, request: int, count: int) -> list[int]:
        """Return tokens of no meaning, the same ones each time, of a request."""
        drawn = random.Random(request)  # noqa: S311
        return [drawn.randrange(self._decoder.vocabulary) for _ in range(count)]

    def work(self, n: int) -> ExecutedWork:
        """Return the work of the model's modules, without padding inside kernels."""
        return served_work(self.setting, self._decoder, n)

    def operations(self) -> tuple[str, ...]:
        """Return nothing: a profiler names a GPU's kernels."""
        return ()

    def loaded(self) -> EngineLoaded:
        """Return what is on record of what ran; no rule speaks of its matrices."""
        setting, decoder = self.setting, self._decoder
        return EngineLoaded(
            engine=setting.backend,
            release=setting.release or "",
            package=BY_NAME[setting.backend].package,
            library_sha256={},
            header_sha256={},
            system_info=self.describe(),
            model=setting.model or "",
            weights_sha256=self._made_of,
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
    """Return the FLOPs and bytes of a decoder's forward over N, tokens spread evenly over experts.

    Attention is counted as grouped attention is, whatever kernel the engine takes.
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
    flop = sum(count * work.flop_logical for count, work in works)
    return ExecutedWork(
        flop_logical=flop,
        flop_executed=flop,
        bytes_compulsory=sum(count * work.bytes_compulsory for count, work in works),
        basis=f"the sum of {len(works)} kinds of modules; no padding inside kernels",
    )


@contextmanager
def refused(setting: Setting) -> Iterator[None]:
    """Say in one message what an engine raises while it loads a model."""
    try:
        yield
    except (AssertionError, KeyError, OSError, RuntimeError, TypeError, ValueError) as error:
        failed = isinstance(error, RuntimeError) and not isinstance(error, NotImplementedError)
        if failed and "CUDA" in str(error):  # the GPU, which is no fault of the model
            raise
        last = " ".join(str(error).split()[-40:]) or type(error).__name__
        raise EvidenceError(
            f"{setting.backend} {setting.release} does not load {setting.model}: {last}",
            remedy="Choose a model that this release serves on this GPU, or a smaller context",
        ) from error


@contextmanager
def variables(**values: str) -> Iterator[None]:
    """Set variables of the environment for as long as an engine is being loaded."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _check(setting: Setting, weights: object) -> str:
    """Return the SHA-256 of what makes the weights; EvidenceError unless the engine draws them."""
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


def _refuse_too_long(setting: Setting, config: dict[str, Any], asked: int) -> None:
    longest = config.get("max_position_embeddings")
    if isinstance(longest, int) and asked > longest:
        raise EvidenceError(
            f"L + 2 N = {asked} positions, for which the engine needs room, are more than "
            f"{setting.model}'s {longest}",
            remedy="Choose a smaller context or fewer positions",
        )
