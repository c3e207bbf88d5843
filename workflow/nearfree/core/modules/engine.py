"""A real engine's whole forward: N positions of b requests over L cached positions."""

from typing import Annotated

from msgspec import Meta

from nearfree.core.modules.kind import ModuleKind
from nearfree.core.modules.study import Axis, StudyBase
from nearfree.core.names import Name
from nearfree.core.precision import Dtype
from nearfree.core.setting import Release, Setting


class EngineStudy(StudyBase, frozen=True, kw_only=True, tag="engine"):
    """An engine's forward over batch sizes, contexts, threads, and with weights repacked or not.

    `backend` is the engine, `release` the release of its build, `model` an entry of weights.yaml.
    """

    model: Name
    release: Release
    context: Axis
    threads: Axis = (1,)
    repack: Annotated[tuple[bool, ...], Meta(min_length=1)] = (True,)
    kv_dtype: Dtype | None = None
    dtype: Dtype = "float32"

    axes = ("threads", "repack", "batch", "context")

    def setting(self, digest: str, file_type: str) -> Setting:
        """Return the study's setting at the first value of each axis, for the given weights."""
        return Setting(
            module="engine",
            backend=self.backend,
            dtype=self.dtype,
            model=self.model,
            model_digest=digest,
            release=self.release,
            file_type=file_type,
            batch=self.batch[0],
            context=self.context[0],
            threads=self.threads[0],
            kv_dtype=self.kv_dtype,
        )


ENGINE = ModuleKind(
    name="engine", title="real engines", several="real engines", own="context", study=EngineStudy
)
"""It has no law of its own: the kernels and tiles of its matrices follow the source's rules."""
