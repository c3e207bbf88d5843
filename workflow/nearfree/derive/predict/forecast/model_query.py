"""A model of a query: its files in a precision, spread over GPUs."""

from collections.abc import Callable, Iterator, Sequence
from functools import cache, cached_property
from itertools import chain
from typing import Any

from msgspec import UNSET, Struct, structs

from nearfree.backends.dense_kernels import dense_widens
from nearfree.backends.kernels import Checkpoint
from nearfree.backends.moe_kernels import MARLIN, TRTLLM, TRTLLM_8, UNKNOWN_YET
from nearfree.backends.names import BackendRelease
from nearfree.backends.public_kernels import BY_PUBLIC_NAME, KIMI_K3_TYPE
from nearfree.core.parallel import ONE_GPU, Parallel
from nearfree.core.precision import (
    ELEMENT_BYTES,
    GROUPS,
    PLAIN,
    QUANTISED,
    Dtype,
    Override,
    Precision,
    Product,
)
from nearfree.decoders.attention_kinds import Latent
from nearfree.decoders.layouts.pieces import OF_ATTENTION
from nearfree.decoders.model_file import ModelFile
from nearfree.decoders.precision import CACHE
from nearfree.decoders.ranks.engines import VLLM, Engine, engine_of
from nearfree.decoders.ranks.shards import refusals
from nearfree.derive.granularity.moe_kernels import (
    activation_format,
    kernel_by_file,
    named_moe_kernel,
    public_library,
    reads_moe,
    runs_marlin,
    triton_stands_in,
)
from nearfree.derive.memory import MAX_GPUS, Memory, memory, needs
from nearfree.derive.predict.forecast.attention_choice import (
    attention_candidates,
    attention_refusals,
    decode_kernel,
    verification_refusals,
)
from nearfree.derive.predict.forecast.degrees import Spread, node_refusals
from nearfree.errors import EvidenceError, Refusal
from nearfree.hardware.platforms import Platform

_NARROW: Dtype = "float8"
_PADDING_KERNELS = (MARLIN, TRTLLM, TRTLLM_8)
"""Kernels for which vLLM pads experts in mxfp4 (`derive.memory.EXPERT_MULTIPLES`)."""


class Unanswered(Struct, frozen=True, kw_only=True):
    """A deployment whose forward cannot be predicted, with every reason.

    `without_class` are the refusals of releases that lack the model's class, `with_class` the
    listed releases that have it.
    """

    about: dict[str, Any]
    precision: dict[str, Dtype] | None
    memory: Memory | None
    refusals: tuple[Refusal, ...]
    without_class: tuple[Refusal, ...] = ()
    with_class: tuple[str, ...] = ()


class ModelQuery:
    """A model's files in the precision and on the GPUs of a query, on one platform.

    `override` has the formats that the query names instead of the files'. `moe_backend` names the
    kernel of its experts as an engine's option does; None is the engine's choice.
    """

    def __init__(
        self,
        file: ModelFile,
        override: Override,
        spread: Spread,
        *,
        moe_backend: str | None,
        platform: str,
        sheet: Platform,
    ) -> None:
        self.file, self.platform, self.sheet = file, platform, sheet
        self._spread, self.parallel = spread, spread.parallel
        self._moe_backend, self._override = moe_backend, override
        stored = file.around if override.stores_all else file.precision
        self.precision = override.apply(stored) if stored else None
        self._file_refusals = (
            *(why for why in file.refusals if not (override.kv and why.key.endswith(CACHE))),
            *(() if override.stores_all else file.mixed),
        )
        self._needs = needs(file, self.precision)
        if self._needs and stored is None and override.kv:
            self._needs = structs.replace(self._needs, cache_element=ELEMENT_BYTES[override.kv])
        kinds = file.decoder.attention if file.decoder else ()
        selects = any(isinstance(kind, Latent) and kind.selected for kind in kinds)
        plain_cache = stored is not None and stored.kv in PLAIN
        kv_by_engine = plain_cache and not (override.kv or override.dtype)
        self._narrowed = None
        if self._needs and selects and kv_by_engine:
            self._narrowed = structs.replace(self._needs, cache_element=ELEMENT_BYTES[_NARROW])

    def attention(self, engine: BackendRelease) -> Iterator[str]:
        """Yield candidate backends of attention for an engine."""
        return attention_candidates(self.file.decoder, self.precision, self.sheet.sm, engine)

    def decoder_kernel(self, engine: BackendRelease) -> str | None:
        """Return the attention kernel with which an engine decodes it, None where not known."""
        decoder = self.file.decoder
        if decoder is None:
            return None
        cache = self.precision.kv if self.precision else decoder.dtype
        return decode_kernel(decoder, cache, self.sheet.sm, engine)

    def precision_on(
        self, engine: BackendRelease | None, dense: BackendRelease | None = None
    ) -> Precision | None:
        """Return the formats in which an engine computes it.

        Parameters
        ----------
        engine, dense
            The backends of its experts, and of its dense products with quantised weights. Marlin
            does not round rows to float8 or nvfp4, even if the model's file does.
        """
        precision, sm = self.precision, self.sheet.sm
        if precision is None:
            return None
        if self._narrows(engine):
            precision = structs.replace(precision, kv=_NARROW)
        plain = precision.plain

        def entering_product(product: Product, kind: str) -> Product:
            stored, rows = product
            if kind == "experts" or sm is None or dense is None or dense.version is None:
                return product
            widens = dense_widens(dense.version, rows, stored, sm)
            return Product(stored, plain) if widens else product

        computed = precision.with_products(entering_product)
        if engine is None:
            return computed
        checkpoint = self._served(engine)
        entering_format = activation_format(
            engine.name, precision.experts.weights, sm, checkpoint.named
        )
        if sm is not None and runs_marlin(engine, precision.experts, sm, checkpoint):
            entering_format = plain
        if entering_format is None:
            return computed
        experts = precision.experts._replace(activations=entering_format)
        return structs.replace(computed, experts=experts)

    def _narrows(self, engine: BackendRelease | None) -> bool:
        """Return whether an engine by default caches its selected latents in float8 there."""
        first = engine_of(engine.name).narrow_latents if engine else None
        return bool(self._narrowed and first and self.sheet.sm and self.sheet.sm >= first)

    @property
    def dense_quantised(self) -> bool:
        """Whether products other than the experts' have quantised weights."""
        return self.precision is not None and any(
            product.weights not in PLAIN
            for kind, product in self.precision.products
            if kind != "experts"
        )

    @property
    def sparse(self) -> bool:
        """Whether it has experts."""
        return self.file.decoder is not None and self.file.decoder.experts is not None

    def default(self, releases: Sequence[BackendRelease]) -> BackendRelease:
        """Return the default release that runs the experts.

        It is the first that supports the degrees of parallelism and whose kernels for the format
        are known on the platform, else the first.
        """
        return next((release for release in releases if self._runs(release)), releases[0])

    def _runs(self, moe: BackendRelease) -> bool:
        if self._uncut((moe,)) or self.precision is None:
            return False
        formats, spread = self.precision.experts, self.parallel.ep > 1
        library = self.library(moe)
        if library is not None:
            return library != UNKNOWN_YET
        return reads_moe(moe, formats, self.sheet.sm, spread=spread)

    def library(self, moe: BackendRelease | None) -> str | None:
        """Return the library that runs its experts, if the blocks of their format are not read."""
        if moe is None or self.precision is None:
            return None
        return public_library(moe, self.precision.experts, self.sheet.sm, self._served(moe))

    def kernel_by_file(self, moe: BackendRelease | None) -> str | None:
        """Return the kernel of its experts that its file selects, if T(N) of it is not known."""
        if moe is None or self.precision is None or self.library(moe) is not None:
            return None
        return kernel_by_file(moe, self.precision.experts, self.sheet.sm, self._checkpoint)

    def _served(self, moe: BackendRelease) -> Checkpoint:
        """Return the facts that select the kernel of its experts, with the kernel it names."""
        try:
            return self._checkpoint._replace(named=self._kernel(moe))
        except EvidenceError:
            return self._checkpoint

    def _kernel(self, moe: BackendRelease) -> str | None:
        """Return the kernel that the query names for its experts, None for the engine's choice."""
        word, precision = self._moe_backend, self.precision
        if word is None or precision is None:
            return None
        return named_moe_kernel(moe, precision.experts, self.sheet.sm, word, self._checkpoint)

    def _unnamed(self, engines: Sequence[BackendRelease]) -> Iterator[Refusal]:
        """Yield refusals of a named kernel of experts that the engines do not run there."""
        word = self._moe_backend
        if word is None:
            return
        if not self.sparse or self.sheet.sm is None:
            where = (
                "where no compute capability is known, by which engines take it"
                if self.sparse
                else f"in {self.file.name}, which has no experts"
            )
            reason = f"{word!r:.60} names a kernel of experts {where}"
            yield Refusal("", "moe_backend", reason, "Leave --moe-backend out")
            return
        for engine in engines:
            try:
                kernel = self._kernel(engine)
            except EvidenceError as error:
                yield Refusal("", "moe_backend", error.what, error.remedy)
            else:
                if kernel and self.library(engine) is None:
                    reason = (
                        f"{word} of {engine} is {kernel}, whose T(N) is not read for these experts"
                    )
                    yield Refusal("", "moe_backend", reason, "Leave --moe-backend out")

    def triton_stands_in(self, moe: BackendRelease | None) -> bool:
        """Return whether Triton's kernel substitutes for another that its engine may run."""
        if self._moe_backend is not None or moe is None or self.precision is None:
            return False
        if self.library(moe) is not None:
            return False
        return triton_stands_in(moe, self.precision.experts, self.sheet.sm, self._checkpoint)

    @property
    def _checkpoint(self) -> Checkpoint:
        """The facts that select kernels; those of its file count only for the file's own format."""
        decoder, stored = self.file.decoder, self.file.precision
        model_type = decoder.model_type if decoder else ""
        if decoder and decoder.residual_block is not UNSET:
            model_type = KIMI_K3_TYPE
        if stored is None or self.precision is None or stored.experts != self.precision.experts:
            return Checkpoint(model_type, parallel=self.parallel)
        groups = {kind: columns for kind, _, columns in self.file.groups}
        return Checkpoint(
            model_type,
            static=self.file.static,
            compressed=self.file.method == "compressed-tensors",
            group=groups.get("experts"),
            parallel=self.parallel,
        )

    def refused(
        self,
        engines: Sequence[BackendRelease],
        attention: Sequence[BackendRelease],
    ) -> tuple[Refusal, ...]:
        """Return every reason why its forward cannot be predicted.

        Parameters
        ----------
        engines, attention
            Releases that may serve it and run its experts, and those that may run its attention.
        """
        decoder = self.file.decoder
        gpu_refusals = (
            *self._spread.refused(of_experts=decoder is None or self.sparse),
            *self._uncut(engines),
            *node_refusals(self.parallel, self.platform, self.sheet),
            *self._unnamed(engines),
        )
        cache = self.precision.kv if self.precision else PLAIN[0]
        of_releases: list[Iterator[Refusal]] = []
        if decoder:
            of_releases += [
                attention_refusals(decoder, each, self.sheet.sm, cache) for each in attention
            ]
            of_releases += [verification_refusals(decoder, engine) for engine in engines]
        return tuple(dict.fromkeys((*self._file_refusals, *gpu_refusals, *chain(*of_releases))))

    def _uncut(self, moe: Sequence[BackendRelease]) -> tuple[Refusal, ...]:
        """Return refusals of engines that do not support the model's degrees of parallelism."""
        decoder, parallel = self.file.decoder, self.parallel
        if decoder is None or parallel == ONE_GPU:
            return ()
        engines, groups = [engine_of(release.name) for release in moe] or [VLLM], self._groups()
        reasons = (refusals(decoder, parallel, engine, groups) for engine in engines)
        return tuple(chain.from_iterable(reasons))

    def _groups(self) -> dict[str, tuple[int, int]]:
        """Return the outputs and inputs that share a scale, by kind of stored weights.

        Weights about a state have the format of attention.
        """
        stored, precision = self.file.precision, self.precision
        if stored is None or precision is None:
            return {}
        groups = {}
        file_groups = {kind: (rows, columns) for kind, rows, columns in self.file.groups}
        for kind in (*QUANTISED, "state"):
            product = OF_ATTENTION if kind == "state" else kind
            weights: Dtype = getattr(precision, product).weights
            as_stored = weights == getattr(stored, product).weights
            sizes = file_groups.get(kind) if as_stored else GROUPS.get(weights)
            groups[kind] = sizes or (1, 1)
        return groups

    def memory(self, batch: int, context: int, moe: BackendRelease) -> Memory | None:
        """Return its memory under an engine; None where it is not known."""
        model_needs = self._narrowed if self._narrows(moe) else self._needs
        if model_needs is None:
            return None
        engine = engine_of(moe.name)
        found = memory(
            model_needs,
            self.sheet.memory_gb,
            parallel=self.parallel,
            engine=engine,
            batch=batch,
            context=context,
            padded=self._fills(moe),
        )
        needed = found.gpus_needed
        while needed and not self._shared_by(needed, engine):
            needed = 2 * needed if needed < MAX_GPUS else None
        return structs.replace(found, gpus_needed=needed)

    @cached_property
    def _shared_by(self) -> Callable[[int, Engine], bool]:
        """Whether an engine shares the model among a number of GPUs by tp, if need be with ep."""

        @cache
        def shared(gpus: int, engine: Engine) -> bool:
            decoder, groups = self.file.decoder, self._groups()
            return decoder is None or any(
                not refusals(decoder, Parallel(tp=gpus, ep=ep), engine, groups)
                for ep in ((1, gpus) if self.sparse else (1,))
            )

        return shared

    def _fills(self, moe: BackendRelease) -> bool:
        """Return whether an engine pads its experts."""
        in_four = self.precision is not None and self.precision.experts.weights == "mxfp4"
        if not in_four or moe.name != VLLM.name:
            return False
        return BY_PUBLIC_NAME.get(self.library(moe) or "") in _PADDING_KERNELS

    def unanswered(
        self, reasons: tuple[Refusal, ...], batch: int, context: int, engine: BackendRelease
    ) -> Unanswered:
        """Return its condition and memory under an engine, with the refusals of its forward."""
        precision = self.precision.named_formats(self.file.main) if self.precision else None
        return Unanswered(
            about={
                "model": self.file.name,
                "revision": self.file.revision,
                "platform": self.platform,
                "dtype": precision["activations"] if precision else None,
                "parallel": self.parallel.degrees,
                "batch": batch,
                "context": context,
            },
            precision=precision,
            memory=self.memory(batch, context, engine),
            refusals=reasons,
        )
