"""OpenVINO's forward as a kernel of a study: converted and compiled once, run at each N."""

from pathlib import Path
from typing import Any

from nearfree.backends.adapters.kernel import ExecutionContext, Positions
from nearfree.backends.builds import build_of
from nearfree.core.setting import Setting
from nearfree.core.work import ExecutedWork
from nearfree.engines.files import weights_path
from nearfree.engines.forward import EngineKernel
from nearfree.engines.kernel import forward_work, product_formats, refuse_too_large
from nearfree.engines.library import sha256_of
from nearfree.engines.openvino import Compiled, Converted, Runtime, load, refuse_unread
from nearfree.engines.openvino_pages import Pages
from nearfree.engines.threads import refuse_threads
from nearfree.errors import EvidenceError
from nearfree.gguf.header import GgufHeader, stored_bytes
from nearfree.gguf.reader import read_header
from nearfree.log.events import EngineLoaded
from nearfree.models.gguf_forward import matrices_of, shape_of


class OpenVinoForward(EngineKernel):
    """A decode or verify forward of OpenVINO over b requests with L cached positions each."""

    def __init__(self, setting: Setting, positions: Positions, execution: ExecutionContext) -> None:
        self._setting = setting
        if not setting.repack:
            raise EvidenceError(
                "OpenVINO always stores weights in its kernels' layout",
                remedy="Leave out --no-repack, or `repack` of the study",
            )
        path = weights_path(execution.weights[setting.model or ""], execution.files)
        self._header = read_header(path)
        refuse_unread(self._header)
        threads = setting.threads or 1
        key = _key(path, threads, setting.kv_dtype)
        shared = key in execution.shared
        refuse_too_large(setting, self._header, max(positions), shared=shared)
        refuse_threads([threads])
        self._build = build_of(setting.backend, setting.release or "")
        runtime = load(setting.release or "", self._build)
        self._compiled = _shared(execution.shared, runtime, path, key)
        self._path = path
        self._pages = Pages(
            self._compiled,
            batch=setting.batch,
            cached=setting.context or 0,
            positions=max(positions),
            vocabulary=vocabulary(self._header),
        )
        cold = stored_bytes(self._header) > execution.cache_bytes
        self.cache = "cold" if cold else "warm"

    def forward(self, n: int) -> None:
        """Run one forward over N positions of each request."""
        self._pages.forward(n)

    def finite(self, n: int) -> bool:
        """Return whether all logits of a forward over N are finite."""
        self.forward(n)
        return bool(self._compiled.runtime.numpy.isfinite(self._pages.logits).all())

    def work(self, n: int) -> ExecutedWork:
        """Return the work of the matrices and of attention, from the file's shapes."""
        return forward_work(self._setting, self._header, n, self._pages.position_bytes)

    def operations(self) -> tuple[str, ...]:
        """Return the distinct formats of the file's matrices, as `mul_mat TYPE`."""
        return product_formats(self._header)

    def loaded(self) -> EngineLoaded:
        """Return the event that records the engine, its libraries and its model."""
        setting = self._setting
        return loaded_event(
            self._compiled,
            self._path,
            release=setting.release or "",
            package=self._build.package,
            name=setting.model or "",
            file_type=setting.file_type or "",
        )


def loaded_event(
    compiled: Compiled, path: Path, *, release: str, package: str, name: str, file_type: str
) -> EngineLoaded:
    """Return the event that records a file's compiled model: libraries, properties, weights."""
    header = read_header(path)
    return EngineLoaded(
        engine="openvino",
        release=release,
        package=package,
        library_sha256=compiled.runtime.files,
        header_sha256={},
        system_info=compiled.system_info,
        model=name,
        weights_sha256=sha256_of(path),
        weights_bytes=header.file_bytes,
        file_type=file_type,
        repack=True,
        matrices=matrices_of(header),
        shape=shape_of(header),
    )


def vocabulary(header: GgufHeader) -> int:
    """Return the number of tokens in a file's embedding."""
    embedding = header.by_name.get("token_embd.weight")
    if embedding is None:
        raise EvidenceError(
            f"{header.file} has no token_embd.weight", remedy="Give a GGUF file of a text model"
        )
    return embedding.dims[-1]


_Key = tuple[str, str, int, str | None]
"""What settings share a compiled model: engine, file, threads and the format of the cache."""


def _key(path: Path, threads: int, kv_dtype: str | None) -> _Key:
    return "openvino", str(path), threads, kv_dtype


def _shared(shared: dict[Any, Any], runtime: Runtime, path: Path, key: _Key) -> Compiled:
    """Return a file's compiled model, made if no setting needed it before."""
    engine, file, threads, kv_dtype = key
    if (engine, file) not in shared:
        shared[engine, file] = Converted(runtime, path)
    if key not in shared:
        shared[key] = Compiled(runtime, shared[engine, file], threads, kv_dtype)
    compiled_model: Compiled = shared[key]
    return compiled_model
