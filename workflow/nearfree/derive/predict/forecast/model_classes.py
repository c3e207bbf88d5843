"""Whether the serving release has a model's class, and which releases have it."""

from collections.abc import Iterator, Sequence
from functools import cached_property

from nearfree.backends.names import BackendRelease, is_since
from nearfree.config.files import Config
from nearfree.derive.predict.forecast.on_record import listed_versions
from nearfree.errors import Refusal
from nearfree.shipped import shipped
from nearfree.sources.classes import LOCK, ClassLock, read_class_lock, spans_of
from nearfree.sources.packages import plain_version

_FUSES = "0.25.0"
"""The first release of vLLM whose Transformers backend fuses query, key and value into one product,
and gate and up into another: vllm/model_executor/models/transformers/base.py of 0.25.0, lines
431-432, and 0.33.0, lines 483-484; the backend of 0.24.0 fuses none."""


def class_lock(config: Config) -> ClassLock:
    """Return the lock of model classes by engine: the config folder's own, or the shipped one.

    Raises
    ------
    ConfigError
        The file is not a valid lock.
    """
    local = config.folder / LOCK
    return read_class_lock(local if local.exists() else shipped(f"config/{LOCK}"))


class ModelClass:
    """The class of a model, by the names that its config.json gives, in engines' releases.

    Parameters
    ----------
    lock
        The classes of engines' releases; engines and releases that it lacks are never refused.
    names
        `architectures` of the model's file; an engine uses the first that it has. Empty where the
        file names none; then nothing is refused.
    """

    def __init__(self, config: Config, lock: ClassLock, names: Sequence[str]) -> None:
        self._config, self._lock, self._names = config, lock, names
        self._having = {engine: locked.releases_with(*names) for engine, locked in lock.items()}

    def lacks(self, engine: BackendRelease) -> bool:
        """Return whether a release is known to have no class of the model."""
        release = self._release(engine)
        return bool(self._names and release) and release not in self._having[engine.name]

    def refused(self, engines: Sequence[BackendRelease]) -> Iterator[Refusal]:
        """Yield a refusal for each engine whose release lacks the class, if another has it."""
        for engine in filter(self.lacks, engines):
            options = list(self._instead(engine.name))
            if not options:
                continue
            reason = (
                f"{engine.name} {self._release(engine)} has no class {self._said}: "
                f"{self._where(engine.name)}; if its Transformers backend runs the model, T(N) of "
                "that is not known"
            )
            yield Refusal("", "", reason, f"Name {' or '.join(options)}")

    @cached_property
    def releases(self) -> tuple[str, ...]:
        """The listed releases that have the class, as package==version, the newest first."""
        return tuple(
            f"{engine}=={version}"
            for engine, having in self._having.items()
            for version in listed_versions(self._config, BackendRelease(engine))
            if version in having
        )

    def caveat(self, engine: BackendRelease) -> str | None:
        """Return a caveat about a release that runs the model without a class of its own."""
        release = self._release(engine)
        if not self._names or release is None:
            return None
        if self.lacks(engine):
            return (
                f"no release of {' or '.join(self._lock)} that is read has a class {self._said}: "
                f"T(N) is of {engine.name}'s kernels for its shapes, called by other code"
            )
        locked = self._lock[engine.name]
        class_name = next(name for name in self._names if release in locked.releases_with(name))
        if not locked.by_transformers(class_name, release):
            return None
        fusion = (
            "fuses Q, K and V, and gate and up, as is timed, where it finds them in the model's "
            "code"
            if is_since(release, _FUSES)
            else "computes Q, K, V, gate and up one by one: timed are fused products"
        )
        return (
            f"{engine.name} {release} runs {class_name} by its Transformers backend, which {fusion}"
        )

    def _release(self, engine: BackendRelease) -> str | None:
        """Return an engine's release as the lock spells it, None where the lock lacks it.

        Without a version it is the newest release on record.
        """
        if engine.name not in self._lock:
            return None
        version = engine.version or next(iter(listed_versions(self._config, engine)), None)
        plain = plain_version(engine.name, version) if version else None
        return plain if plain in self._lock[engine.name].releases else None

    @property
    def _said(self) -> str:
        return " or ".join(f"{name:.80}" for name in self._names[:3])

    def _where(self, engine: str) -> str:
        """Return which releases have the class: those of an engine, else those of others."""
        spans = {
            name: " and ".join(
                f"from {first} on" if last is None else f"in {first} to {last}"
                for first, last in spans_of(self._lock[name].releases, having)
            )
            for name, having in self._having.items()
            if having
        }
        if engine in spans:
            return f"it is there {spans[engine]}"
        elsewhere = [f"{name} has it {span}" for name, span in spans.items()]
        return f"no release of {engine} that is read has it, {', '.join(elsewhere)}"

    def _instead(self, first: str) -> Iterator[str]:
        """Yield an option that names the newest release with the class, for each engine."""
        for engine in sorted(self._having, key=lambda release: release != first):
            having = self._having[engine]
            listed = listed_versions(self._config, BackendRelease(engine))
            with_class = [release for release in listed if release in having]
            if with_class:
                yield f"--moe {engine}=={with_class[0]}"
            elif having:
                yield f"--moe {engine}=={having[-1]} --online"
