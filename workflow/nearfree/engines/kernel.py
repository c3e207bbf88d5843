"""llama.cpp's forward as a kernel of a study: loaded once, run at each N, and described."""

import math
from functools import cached_property
from pathlib import Path
from typing import Any

from nearfree.backends.adapters.kernel import ExecutionContext, Positions
from nearfree.backends.builds import build_of
from nearfree.backends.free_memory import free_host_bytes
from nearfree.core.precision import ELEMENT_BYTES
from nearfree.core.setting import Setting
from nearfree.core.work import ExecutedWork, unpadded_work
from nearfree.engines.files import library_folder, weights_path
from nearfree.engines.forward import EngineKernel
from nearfree.engines.library import Library, load, sha256_of
from nearfree.engines.llama_cpp import Context, Model
from nearfree.engines.shares import Watch
from nearfree.engines.threads import refuse_threads
from nearfree.errors import EvidenceError
from nearfree.gguf.header import GgufHeader, stored_bytes
from nearfree.gguf.matrices import matrices
from nearfree.gguf.reader import read_header
from nearfree.log.events import EngineLoaded
from nearfree.models.gguf_forward import cached_elements, matrices_of, shape_of, whole_or
from nearfree.units import BYTES_PER_GB


class LlamaCppForward(EngineKernel):
    """A decode or verify forward of llama.cpp over b requests with L cached positions each."""

    def __init__(self, setting: Setting, positions: Positions, execution: ExecutionContext) -> None:
        self._setting = setting
        weights = execution.weights[setting.model or ""]
        self._build = build_of(setting.backend, setting.release or "")
        path = weights_path(weights, execution.files)
        self._header = read_header(path)
        key = ("llama_cpp", str(path), bool(setting.repack))
        shared = key in execution.shared
        refuse_too_large(setting, self._header, max(positions), shared=shared)
        refuse_threads([setting.threads or 1])
        folder = library_folder(setting.backend, setting.release or "", self._build)
        self._library: Library = load(folder, self._build)
        self._model = _shared_model(execution.shared, key, self._library, path)
        self._path = path
        self._max_n = max(positions)
        self._context = self._new(self._max_n)
        self._watch = Watch(self._library)
        cache_bytes = execution.cache_bytes
        self.cache = "cold" if stored_bytes(self._header) > cache_bytes else "warm"

    def ready_shares(self) -> None:
        """Create the watched context."""
        _ = self._watched

    @cached_property
    def _watched(self) -> Context:
        context = self._new(self._max_n, self._watch)
        context.forward(1)
        return context

    def shares(self, n: int) -> dict[str, float]:
        """Return the microseconds of each module in one watched forward over N."""
        self._watched.forward(n)  # warm-up: the first forward of this N
        self._watch.take()
        self._watched.forward(n)
        return self._watch.take()

    def _new(self, max_n: int, watch: Watch | None = None) -> Context:
        setting = self._setting
        return Context(
            self._model,
            batch=setting.batch,
            cached=setting.context or 0,
            positions=max_n,
            threads=setting.threads or 1,
            watch=watch,
        )

    def forward(self, n: int) -> None:
        """Run one forward over N positions of each request."""
        self._context.forward(n)

    def finite(self, n: int) -> bool:
        """Return whether all logits of a forward over N are finite.

        A row's sum is finite exactly if all its logits are: it cannot overflow.
        """
        self.forward(n)
        rows = (self._context.logits(row) for row in range(self._setting.batch * n))
        return all(math.isfinite(sum(row)) for row in rows)

    def work(self, n: int) -> ExecutedWork:
        """Return the work of the matrices and of attention, from the file's shapes."""
        return forward_work(self._setting, self._header, n, cached_bytes(self._header))

    def operations(self) -> tuple[str, ...]:
        """Return the distinct formats of the forward's matrices, as `mul_mat TYPE`."""
        return product_formats(self._header)

    def loaded(self) -> EngineLoaded:
        """Return the event that records the engine, its library and its model."""
        setting = self._setting
        return EngineLoaded(
            engine=setting.backend,
            release=setting.release or "",
            package=self._build.package,
            library_sha256=self._library.files,
            header_sha256=self._build.abi.headers,
            system_info=self._library.system_info,
            model=setting.model or "",
            weights_sha256=sha256_of(self._path),
            weights_bytes=self._header.file_bytes,
            file_type=setting.file_type or "",
            repack=bool(setting.repack),
            matrices=matrices_of(self._header),
            shape=shape_of(self._header),
        )


def _shared_model(
    shared: dict[Any, Any], key: tuple[str, str, bool], library: Library, path: Path
) -> Model:
    """Return a file's weights in memory, shared by settings with the same layout of weights."""
    *_, repack = key
    if key not in shared:
        shared[key] = Model(library, path, repack=repack)
    model: Model = shared[key]
    return model


def product_formats(header: GgufHeader) -> tuple[str, ...]:
    """Return the distinct formats of a file's matrices, as `mul_mat TYPE`."""
    formats = {matrix.type.name for matrix in matrices(header)}
    return tuple(f"mul_mat {name}" for name in sorted(formats))


def cached_bytes(header: GgufHeader, kv_dtype: str | None = None) -> int:
    """Return the bytes of a cached position in all layers.

    Without a format they are in float16, llama.cpp's default, and the largest of these engines.
    """
    return int(ELEMENT_BYTES[kv_dtype or "float16"] * cached_elements(header))


def forward_work(setting: Setting, header: GgufHeader, n: int, position_bytes: int) -> ExecutedWork:
    """Return the FLOPs and bytes of a forward over N, without padding.

    Of routed experts those that a token takes count, by the file's own metadata. `position_bytes`
    are the bytes of a cached position in all layers.
    """
    rows, cached, shape = setting.batch * n, setting.context or 0, shape_of(header)
    multiply_adds = read_bytes = 0
    for matrix in matrices(header):
        used_count = min(shape.taken_experts, matrix.count) if matrix.routed else matrix.count
        multiply_adds += rows * used_count * matrix.rows * matrix.columns
        read_bytes += matrix.read_bytes(
            min(matrix.count, rows * used_count) if matrix.routed else None
        )
    attended_keys = setting.batch * sum(cached + 1 + offset for offset in range(n))
    flop = 2 * multiply_adds + 4 * shape.layers * shape.heads * shape.head_dim * attended_keys
    moved = read_bytes + position_bytes * setting.batch * (cached + n)
    basis = "matrices of the GGUF file, as stored, and attention; no padding inside kernels"
    return unpadded_work(flop, moved, basis)


def refuse_too_large(
    setting: Setting, header: GgufHeader, max_n: int, *, shared: bool = False
) -> None:
    """Raise EvidenceError if a model does not fit into memory, or L + N into its context.

    Parameters
    ----------
    shared
        Whether the weights are in memory already, so that only the cache has to fit.
    """
    max_positions = whole_or(header.metadata.get(f"{header.architecture}.context_length"), 1 << 31)
    positions = (setting.context or 0) + max_n
    if positions > max_positions:
        raise EvidenceError(
            f"L + N = {positions} positions are more than {header.file}'s {max_positions}",
            remedy="Choose a smaller context or fewer positions",
        )
    weight_bytes = 0 if shared else stored_bytes(header)
    needed_bytes = weight_bytes + cached_bytes(header, setting.kv_dtype) * setting.batch * positions
    free_bytes = free_host_bytes()
    if free_bytes is not None and needed_bytes > free_bytes:
        raise EvidenceError(
            f"{header.file} with its cache takes {needed_bytes / BYTES_PER_GB:.1f} GB, and "
            f"{free_bytes / BYTES_PER_GB:.1f} GB are free",
            remedy="Choose a smaller model, batch or context",
        )
