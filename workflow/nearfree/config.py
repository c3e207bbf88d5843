"""The files under config/: read, checked against their types, and turned into plans."""

from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import msgspec
import yaml
from msgspec import Meta, Struct

from nearfree.errors import ConfigError
from nearfree.hardware.platforms import Platform, check_platforms, resolve
from nearfree.settings import (
    Dtype,
    Interleaved,
    MeasurePlan,
    Name,
    Positive,
    ProbePlan,
    Setting,
    Sweep,
)

T = TypeVar("T")
Epsilon = Annotated[float, Meta(gt=0, lt=1)]


class Site(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """config.yaml: what this site measures, and at which tolerances it reports."""

    here: Annotated[tuple[Name, ...], Meta(min_length=1)]
    epsilon: Epsilon
    tolerances: Annotated[tuple[Epsilon, ...], Meta(min_length=1)]
    python: dict[Name, str] = {}


class Backend(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """backends.yaml: one backend and the environment that it runs in."""

    environment: Name


class DenseShape(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Widths of a two-matrix FFN, in elements."""

    d_model: Positive
    d_ff: Positive


class Study(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """studies.yaml: one module with one backend, over batch sizes and a grid of N."""

    module: Literal["dense_ffn"]
    backend: Name
    platforms: tuple[Name, ...]
    shape: DenseShape
    batch: Annotated[tuple[Positive, ...], Meta(min_length=1)]
    positions: Annotated[tuple[Positive, ...], Meta(min_length=1)]
    tokens_max: Positive | None = None
    baseline: Positive = 1
    dtype: Dtype = "auto"
    protocol: Interleaved

    def sweeps(self) -> tuple[Sweep, ...]:
        """Return one sweep a batch size, without points of more than `tokens_max` tokens."""
        return tuple(
            Sweep(
                setting=Setting(
                    module=self.module,
                    backend=self.backend,
                    dtype=self.dtype,
                    batch=batch,
                    d_model=self.shape.d_model,
                    d_ff=self.shape.d_ff,
                ),
                positions=tuple(
                    n
                    for n in self.positions
                    if self.tokens_max is None or n * batch <= max(self.tokens_max, batch)
                ),
                baseline=self.baseline,
            )
            for batch in self.batch
        )


class Config:
    """All config files of one folder, each read when it is first asked for.

    Raises
    ------
    ConfigError
        A file is missing, is not YAML, or has a key, type or name that does not fit; the message
        says which file and field.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @cached_property
    def site(self) -> Site:
        """What this site measures."""
        site = self._read("config.yaml", Site)
        for name in site.here:
            if name not in self.platforms:
                raise ConfigError(
                    f"{self.folder}/config.yaml: here names the unknown platform {name!r}",
                    remedy=f"Choose from {', '.join(self.platforms)}, "
                    f"or add it to {self.folder}/platforms.yaml",
                )
        if site.epsilon not in site.tolerances:
            raise ConfigError(
                f"{self.folder}/config.yaml: epsilon {site.epsilon} is not one of the tolerances",
                remedy="Add it to `tolerances`",
            )
        return site

    @cached_property
    def platforms(self) -> dict[str, Platform]:
        """Every known platform by name."""
        platforms = self._read("platforms.yaml", dict[Name, Platform])
        check_platforms(platforms)
        return platforms

    @cached_property
    def backends(self) -> dict[str, Backend]:
        """Every backend by name."""
        return self._read("backends.yaml", dict[Name, Backend])

    @cached_property
    def studies(self) -> dict[str, Study]:
        """Every study by name."""
        studies = self._read("studies.yaml", dict[Name, Study])
        for name, study in studies.items():
            self._known(name, "backend", study.backend, list(self.backends))
            for platform in study.platforms:
                self._known(name, "platforms", platform, list(self.platforms))
            try:
                study.sweeps()
            except ConfigError as error:
                raise ConfigError(
                    f"{self.folder}/studies.yaml: {name}: {error.what}", remedy=error.remedy
                ) from error
        return studies

    @cached_property
    def takes(self) -> dict[str, dict[str, int]]:
        """Which take is asked for, by platform and stream; the first where nothing is said."""
        if not (self.folder / "takes.yaml").exists():
            return {}
        return self._read("takes.yaml", dict[Name, dict[Name, Positive]])

    def take(self, scope: str, stream: str) -> int:
        """Return the take that is asked for."""
        return self.takes.get(scope, {}).get(stream, 1)

    def platform(self, name: str) -> Platform:
        """Return a platform by name or alias; ConfigError if there is none."""
        return self.platforms[resolve(self.platforms, name)]

    def datasheets(self, scope: str) -> dict[str, Platform]:
        """Return the datasheets that a scope's tables hold: its own, or all of them in public."""
        return {name: each for name, each in self.platforms.items() if scope in (name, "public")}

    def study(self, scope: str, name: str) -> Study:
        """Return a study that is measured on a platform; ConfigError if there is none."""
        known = [key for key, study in self.studies.items() if scope in study.platforms]
        if name not in known:
            raise ConfigError(
                f"no study {name!r} on platform {scope!r}",
                remedy=f"Choose from {', '.join(known) or 'none'}, "
                f"or add it to {self.folder}/studies.yaml",
            )
        return self.studies[name]

    def measure_plan(self, scope: str, name: str) -> MeasurePlan:
        """Return the plan of a study on a platform."""
        study = self.study(scope, name)
        return MeasurePlan(
            sweeps=study.sweeps(),
            protocol=study.protocol,
            environment=self.backends[study.backend].environment,
        )

    def probe_plan(self, scope: str) -> ProbePlan:
        """Return what a probe of a platform tries; ConfigError if there is no such platform."""
        self.platform(scope)
        return ProbePlan(dtypes=("bfloat16", "float16", "float32"))

    def _known(self, study: str, field: str, value: str, known: list[str]) -> None:
        if value not in known:
            raise ConfigError(
                f"{self.folder}/studies.yaml: {study}.{field} names the unknown {value!r}",
                remedy=f"Choose from {', '.join(known)}",
            )

    def _read(self, name: str, kind: type[T]) -> T:
        path = self.folder / name
        try:
            raw = yaml.load(path.read_text(encoding="utf-8"), _Loader)  # noqa: S506 (a SafeLoader)
            return msgspec.convert({} if raw is None else raw, kind)
        except OSError as error:
            raise ConfigError(
                f"{path} cannot be read: {error.strerror}", remedy="Restore it from the repository"
            ) from error
        except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
            text = " ".join(str(error).split())
            raise ConfigError(f"{path} is not YAML: {text}", remedy="Mend that line") from error
        except msgspec.ValidationError as error:
            what, _, field = str(error).partition(" - at `$")
            field = field.strip("`.") or "the file"
            raise ConfigError(
                f"{path}: {field}: {what[0].lower()}{what[1:]}",
                remedy=f"Compare with {self.folder}/schema/{path.stem}.json",
            ) from error


class _Loader(yaml.SafeLoader):
    """The safe loader, which also refuses a key that stands twice."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:  # noqa: FBT001, FBT002
        seen = set()
        for key, _ in node.value:
            value = self.construct_object(key, deep=True)
            if value in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the key {value!r} stands twice", key.start_mark
                )
            seen.add(value)
        return super().construct_mapping(node, deep)


def schemas() -> dict[str, dict[str, Any]]:
    """Return the JSON Schema of each config file, by its name."""
    kinds: dict[str, Any] = {
        "config": Site,
        "platforms": dict[Name, Platform],
        "backends": dict[Name, Backend],
        "studies": dict[Name, Study],
        "takes": dict[Name, dict[Name, Positive]],
    }
    return {name: msgspec.json.schema(kind) for name, kind in kinds.items()}
