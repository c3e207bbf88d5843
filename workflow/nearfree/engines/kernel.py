"""A real engine's forward as a kernel of a study: loaded once, run at each N, and described."""

import math
from functools import cached_property
from pathlib import Path
from typing import Any

from nearfree.backends.adapters.kernel import ExecutionContext
from nearfree.backends.builds import build_of
from nearfree.backends.free_memory import free_host_bytes
from nearfree.core.setting import Setting
from nearfree.core.work import ExecutedWork
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
from nearfree.models.gguf_forward import matrices_of, shape_of, whole_or
from nearfree.units import BYTES_PER_GB

_FLOAT16 = 2
"""Bytes of an element."""


class LlamaCppForward(EngineKernel):
    """A decode or verify forward of llama.cpp over b requests with L cached positions each."""

    def __init__(
        self, setting: Setting, positions: tuple[int, ...], execution: ExecutionContext
    ) -> None:
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
        self._most = max(positions)
        self._context = self._new(self._most)
        self._watch = Watch(self._library)
        cache_bytes = execution.cache_bytes
        self.cache = "cold" if stored_bytes(self._header) > cache_bytes else "warm"

    def ready_shares(self) -> None:
        """Make the context that is watched."""
        _ = self._watched

    @cached_property
    def _watched(self) -> Context:
        made = self._new(self._most, self._watch)
        made.forward(1)
        return made

    def shares(self, n: int) -> dict[str, float]:
        """Return the microseconds of each module in one forward over N that is watched."""
        self._watched.forward(n)  # warms up, as N was not seen yet
        self._watch.take()
        self._watched.forward(n)
        return self._watch.take()

    def _new(self, most: int, watch: Watch | None = None) -> Context:
        setting = self._setting
        return Context(
            self._model,
            batch=setting.batch,
            cached=setting.context or 0,
            positions=most,
            threads=setting.threads or 1,
            watch=watch,
        )

    def forward(self, n: int) -> None:
        """Run one forward over N positions of each request."""
        self._context.forward(n)

    def finite(self, n: int) -> bool:
        """Return whether a forward over N gives logits that are all finite.

        The sum of a row is not finite if one of its logits is not, and cannot overflow.
        """
        self.forward(n)
        rows = (self._context.logits(row) for row in range(self._setting.batch * n))
        return all(math.isfinite(sum(row)) for row in rows)

    def work(self, n: int) -> ExecutedWork:
        """Return the work of the matrices and of attention, as the file's shapes say it."""
        return forward_work(self._setting, self._header, n, cached_bytes(self._header))

    def operations(self) -> tuple[str, ...]:
        """Return the formats that the forward multiplies by, as `mul_mat TYPE`, each once."""
        return multiplied(self._header)

    def loaded(self) -> EngineLoaded:
        """Return what is on record of what ran."""
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
    """Return a file's weights in memory, which settings share that store them alike."""
    *_, repack = key
    if key not in shared:
        shared[key] = Model(library, path, repack=repack)
    model: Model = shared[key]
    return model


def multiplied(header: GgufHeader) -> tuple[str, ...]:
    """Return the formats that a file's forward multiplies by, as `mul_mat TYPE`, each once."""
    kinds = {matrix.type.name for matrix in matrices(header)}
    return tuple(f"mul_mat {name}" for name in sorted(kinds))


def cached_bytes(header: GgufHeader) -> int:
    """Return the bytes of a cached position in all layers, in float16, llama.cpp's default."""
    shape = shape_of(header)
    return 2 * _FLOAT16 * shape.layers * shape.kv_heads * shape.head_dim


def forward_work(setting: Setting, header: GgufHeader, n: int, entry: int) -> ExecutedWork:
    """Return the FLOPs and bytes of a forward over N, without padding.

    Routed experts count as many as a token takes, by the file's own metadata; `entry` are the bytes
    of a cached position in all layers.
    """
    rows, cached, shape = setting.batch * n, setting.context or 0, shape_of(header)
    products = read = 0
    for matrix in matrices(header):
        of_token = min(shape.taken_experts, matrix.count) if matrix.routed else matrix.count
        products += rows * of_token * matrix.rows * matrix.columns
        read += matrix.read_bytes(min(matrix.count, rows * of_token) if matrix.routed else None)
    seen = setting.batch * sum(cached + 1 + place for place in range(n))
    flop = 2 * products + 4 * shape.layers * shape.heads * shape.head_dim * seen
    return ExecutedWork(
        flop_logical=flop,
        flop_executed=flop,
        bytes_compulsory=read + entry * setting.batch * (cached + n),
        basis="matrices of the GGUF file, as stored, and attention; no padding inside kernels",
    )


def refuse_too_large(
    setting: Setting, header: GgufHeader, most: int, *, shared: bool = False
) -> None:
    """Raise EvidenceError for a model that does not fit, or an N that its context does not hold.

    Its cache counts in float16, which is the most that an engine here takes by default.

    Parameters
    ----------
    shared
        Whether its weights are in memory already, and its cache alone has to fit.
    """
    longest = whole_or(header.metadata.get(f"{header.architecture}.context_length"), 1 << 31)
    asked = (setting.context or 0) + most
    if asked > longest:
        raise EvidenceError(
            f"L + N = {asked} positions are more than {header.file}'s {longest}",
            remedy="Choose a smaller context or fewer positions",
        )
    weights = 0 if shared else stored_bytes(header)
    needed = weights + cached_bytes(header) * setting.batch * asked
    free = free_host_bytes()
    if free is not None and needed > free:
        raise EvidenceError(
            f"{header.file} with its cache takes {needed / BYTES_PER_GB:.1f} GB, and "
            f"{free / BYTES_PER_GB:.1f} GB are free",
            remedy="Choose a smaller model, batch or context",
        )
