"""Reads the files under config/, and checks them against their types and each other."""

import inspect
from collections.abc import Iterable
from functools import cache, cached_property, partial
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from nearfree.backends.builds import build_environments
from nearfree.backends.records import BACKENDS
from nearfree.config.cluster import Cluster, JobResources
from nearfree.config.engine_studies import WeightsSpec, engine_sweeps
from nearfree.config.model_studies import model_sweeps
from nearfree.config.yaml_file import entries, read_entries, read_file
from nearfree.core.modules.engine import EngineStudy
from nearfree.core.modules.model import ModelStudy
from nearfree.core.modules.registry import STUDIES
from nearfree.core.modules.routing import LAW_ROUTINGS
from nearfree.core.modules.study import StudyBase
from nearfree.core.names import Name
from nearfree.core.parallel import Degrees
from nearfree.core.plan import MODULES_SUFFIX, PREDICTIONS_SUFFIX, PROFILE_SUFFIX, Sweep
from nearfree.core.precision import Dtype
from nearfree.core.protocols import Positive
from nearfree.core.routing_names import Controlled
from nearfree.core.scopes import IMPORTED, PUBLIC, SOURCES
from nearfree.core.weights import AnyWeights
from nearfree.decoders.model import Model, read_model
from nearfree.derive.stages import COMMANDS
from nearfree.errors import ConfigError
from nearfree.hardware.platforms import Count, Platform, check_platforms, resolve

BOUNDS = LAW_ROUTINGS
"""The two controlled routings, which bound any real routing (paper, app. C.3)."""
Text = Annotated[str, Meta(min_length=1, max_length=200)]
Texts = Annotated[tuple[Text, ...], Meta(min_length=1)]
Tables = Annotated[str, Meta(pattern=r"^aiconfigurator==[0-9]+(\.[0-9]+)+$(?!\n)")]
Package = Annotated[str, Meta(pattern=r"^[a-z0-9-]+==[0-9][0-9a-z.]*$(?!\n)")]
Listed = Annotated[tuple[Count, ...], Meta(min_length=1)]
Contexts = Annotated[tuple[Annotated[int, Meta(ge=1, lt=100_000_000)], ...], Meta(min_length=1)]
"""Cached positions; models exist for ten million."""


class DeploymentSpec(Degrees, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Deployments, one for each combination of the listed values.

    `models` are names under config/models or paths of files. `attention` and `moe` are releases as
    package==version, or packages for the newest recorded release. Without `attention` it is the
    engine's default on the platform. `dense` is the release that runs dense products of quantised
    weights, torch for a library; its default is the engine of `moe`. `batch` is b, `context` L.
    `moe` and `routing` apply to models with experts. `dtype` sets all formats; `weights`,
    `activations` and `kv_dtype` set one each; the model's files give the rest. A degree of
    parallelism, such as `tp`, is 1 unless given. `gpus` stands for tp if tp, dp and pp are 1, else
    it must be their product. The default of `moe` is vllm, or sglang if ep is neither 1 nor tp x
    dp, or if only sglang's kernel for the format is read. `moe_backend` is the value of the
    engine's option for MoE kernels, in the engine's words (backends/named_kernels.py). `graphs` is
    the release of vllm or sglang to whose CUDA graphs steps are padded; `engine` means the
    deployment's engine, if its graphs are on record, and `none` (the default) no padding. `drawn`
    says whether figures show the deployments.
    """

    models: Texts
    platforms: Annotated[tuple[Name, ...], Meta(min_length=1)]
    attention: tuple[Text, ...] = ()
    moe: tuple[Text, ...] = ()
    moe_backend: Text | None = None
    dense: Text | None = None
    batch: Listed = (1,)
    context: Contexts = (4096,)
    routing: Annotated[tuple[Controlled, ...], Meta(min_length=1)] = BOUNDS
    dtype: Dtype | None = None
    weights: Dtype | None = None
    activations: Dtype | None = None
    kv_dtype: Dtype | None = None
    gpus: Positive | None = None
    graphs: Text = "none"
    drawn: bool = True


Epsilon = Annotated[float, Meta(gt=0, lt=1)]


SHIPPED_SETS = ("default", "paper")
"""The sets that the shipped config.yaml names; a project need not have studies of them."""
_OTHER_STREAMS = frozenset({"hardware", "retracted"})
_OTHER_SCOPES = frozenset({PUBLIC, SOURCES, IMPORTED, "all", *COMMANDS})
"""Scopes that are no platforms, and the workflow's commands: no platform may have these names."""


class Site(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """config.yaml: what this site measures, and the tolerances of its report."""

    here: Annotated[tuple[Name, ...], Meta(min_length=1)]
    epsilon: Epsilon
    tolerances: Annotated[tuple[Epsilon, ...], Meta(min_length=1)]
    sets: Annotated[tuple[Name, ...], Meta(min_length=1)] = ("default",)
    python: dict[Name, str] = {}
    without: tuple[Name, ...] = ()
    untested: bool = False
    curves: Annotated[str, Meta(pattern=r"^([A-Za-z0-9_.][A-Za-z0-9_./-]*)?$(?!\n)")] = ""
    imports: tuple[Tables, ...] = ()


class BackendEnvironment(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """backends.yaml: the environment in which a backend runs at this site."""

    environment: Name


class Sources(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """sources.yaml: the releases whose block and tile rules are kept in the event log."""

    releases: tuple[Package, ...] = ()


class Config:
    """All config files of one folder, each read on first access.

    Raises
    ------
    ConfigError
        A file is missing, is not YAML, or has a wrong key, type or name; the message names file and
        field.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @cached_property
    def site(self) -> Site:
        """What this site measures."""
        site = read_file(self.folder / "config.yaml", Site)
        more = f", or add it to {self.folder}/platforms.yaml"
        for name in site.here:
            self._check_known("config.yaml", "here", "platform", name, self.platforms, more=more)
        for name in site.without:
            self._check_known("config.yaml", "without", "study", name, self.studies)
        for name in (name for name in site.sets if name not in SHIPPED_SETS):
            sets = dict.fromkeys((*SHIPPED_SETS, *(study.set for study in self.studies.values())))
            self._check_known("config.yaml", "sets", "set", name, sets)
        for name in site.python:
            environments = {*self.environments.values(), *build_environments()}
            self._check_known("config.yaml", "python", "environment", name, sorted(environments))
        if list(site.tolerances) != sorted(set(site.tolerances)):
            raise ConfigError(
                f"{self.folder}/config.yaml: tolerances {list(site.tolerances)} do not rise",
                remedy="List each tolerance once, smallest first",
            )
        if site.epsilon not in site.tolerances:
            raise ConfigError(
                f"{self.folder}/config.yaml: epsilon {site.epsilon} is not one of the tolerances",
                remedy="Add it to `tolerances`",
            )
        for entry, names in (("here", site.here), ("imports", site.imports)):
            if len(set(names)) < len(names):
                raise ConfigError(
                    f"{self.folder}/config.yaml: {entry} {list(names)} name one twice",
                    remedy="List it once",
                )
        return site

    @cached_property
    def platforms(self) -> dict[str, Platform]:
        """Every known platform by name."""
        file = self.folder / "platforms.yaml"
        platforms = read_entries(file, Platform)
        check_platforms(platforms, file)
        self._refuse_reserved("platforms.yaml", platforms, _OTHER_SCOPES)
        return platforms

    @cached_property
    def environments(self) -> dict[str, Name]:
        """The environment of every backend: its record's, unless backends.yaml overrides it."""
        known = {record.name: record.environment for record in BACKENDS if record.environment}
        path = self.folder / "backends.yaml"
        overrides = read_entries(path, BackendEnvironment) if path.exists() else {}
        for name in overrides:
            self._check_known("backends.yaml", "it", "backend", name, known)
        return known | {name: entry.environment for name, entry in overrides.items()}

    @cached_property
    def studies(self) -> dict[str, StudyBase]:
        """Every study by name."""
        studies: dict[str, StudyBase] = read_entries(self.folder / "studies.yaml", STUDIES)
        self._refuse_reserved("studies.yaml", studies, _OTHER_STREAMS)
        for name, study in studies.items():
            backend = f"{name}.backend"
            self._check_known("studies.yaml", backend, "backend", study.backend, self.environments)
            if name.endswith((PROFILE_SUFFIX, MODULES_SUFFIX, PREDICTIONS_SUFFIX)):
                raise ConfigError(
                    f"{self.folder}/studies.yaml: {name} ends like the name of a derived stream",
                    remedy="Choose another name",
                )
            check = partial(self._check_known, "studies.yaml")
            for platform in study.platforms:
                check(f"{name}.platforms", "platform", platform, self.platforms)
            if isinstance(study, EngineStudy):
                check(f"{name}.model", "weights", study.model, self.weights)
            if isinstance(study, ModelStudy) and study.moe:
                check(f"{name}.moe", "backend", study.moe, self.environments)
            try:
                self._sweeps(study)
            except ConfigError as error:
                raise ConfigError(
                    f"{self.folder}/studies.yaml: {name}: {error.what}", remedy=error.remedy
                ) from error
        return studies

    def _sweeps(self, study: StudyBase) -> tuple[Sweep, ...]:
        if isinstance(study, ModelStudy):
            return model_sweeps(study, self.model(study.model))
        if isinstance(study, EngineStudy):
            return engine_sweeps(study, self.weights_of(study))
        return study.sweeps()

    @cache  # noqa: B019 (a config lives as long as the program)
    def sweeps(self, name: str) -> tuple[Sweep, ...]:
        """Return the sweeps of a study."""
        return self._sweeps(self.studies[name])

    @cache  # noqa: B019 (a config lives as long as the program)
    def model(self, name: str) -> Model:
        """Return a model of models/; ConfigError gives the reason if it cannot be run."""
        return read_model(self.folder, name)

    @cached_property
    def weights(self) -> dict[str, WeightsSpec]:
        """The weights that engines run, by name; empty if there is no weights.yaml."""
        path = self.folder / "weights.yaml"
        return read_entries(path, WeightsSpec) if path.exists() else {}

    @cache  # noqa: B019 (a config lives as long as the program)
    def weights_of(self, study: EngineStudy) -> AnyWeights:
        """Return the weights that an engine's study runs."""
        return self.weights[study.model].resolved(self.folder)

    @cached_property
    def releases(self) -> tuple[str, ...]:
        """Releases whose rules are read, as package==version; empty if there is no sources.yaml."""
        path = self.folder / "sources.yaml"
        releases = read_file(path, Sources).releases if path.exists() else ()
        for release in releases:
            if releases.count(release) > 1:
                raise ConfigError(f"{path} names {release} twice", remedy="List it once")
        return releases

    @cached_property
    def deployments(self) -> dict[str, DeploymentSpec]:
        """The deployments of the tables, by name; empty if there is no deployments.yaml."""
        path = self.folder / "deployments.yaml"
        specs = read_entries(path, DeploymentSpec) if path.exists() else {}
        for name, deployment in specs.items():
            for platform in deployment.platforms:
                self._check_known(
                    "deployments.yaml", f"{name}.platforms", "platform", platform, self.platforms
                )
        return specs

    @cached_property
    def cluster(self) -> Cluster:
        """The resources of SLURM jobs; the defaults if there is no cluster.yaml."""
        path = self.folder / "cluster.yaml"
        cluster = read_file(path, Cluster) if path.exists() else Cluster()
        for name in cluster.platforms:
            self._check_known("cluster.yaml", "platforms", "platform", name, self.platforms)
        for name in cluster.studies:
            self._check_known("cluster.yaml", "studies", "study", name, self.studies)
        return cluster

    def job_resources(self, scope: str, study: str) -> JobResources:
        """Return the resources of a job of a platform's study."""
        return self.cluster.job_resources(self.platform(scope).kind, scope, study)

    @cached_property
    def takes(self) -> dict[str, dict[str, int]]:
        """The requested take by platform and stream; streams that are missing have take 1."""
        path = self.folder / "takes.yaml"
        if not path.exists():
            return {}
        platforms = read_entries(path, dict[Any, Any])
        return {name: entries(path, streams, Positive, name) for name, streams in platforms.items()}

    def take(self, scope: str, stream: str) -> int:
        """Return the requested take of a stream."""
        return self.takes.get(scope, {}).get(stream, 1)

    def platform(self, name: str) -> Platform:
        """Return a platform by name or alias; ConfigError if there is none."""
        return self.platforms[resolve(self.platforms, name)]

    def datasheets(self, scope: str) -> dict[str, Platform]:
        """Return the datasheets that a scope's tables use: its own, or all of them.

        The scopes of published and imported data cover all platforms.
        """
        return {
            name: sheet
            for name, sheet in self.platforms.items()
            if scope in (name, PUBLIC, IMPORTED)
        }

    @cache  # noqa: B019 (a config lives as long as the program)
    def studied(self, scope: str) -> list[str]:
        """Return the studies that are measured on a platform: those of the site's sets."""
        return [
            name
            for name, study in self.studies.items()
            if scope in study.platforms
            and study.set in self.site.sets
            and name not in self.site.without
        ]

    def curves(self, scope: str) -> Path | None:
        """Return the curve file of a simulated platform, None if platforms are real."""
        return Path(self.site.curves) / f"{scope}.json" if self.site.curves else None

    def backends_of(self, name: str) -> set[str]:
        """Return the backends of a study: its own, and for a model that of its experts."""
        study = self.studies[name]
        experts = {study.moe} if isinstance(study, ModelStudy) and study.moe else set()
        return {study.backend, *experts}

    def study(self, scope: str, name: str) -> StudyBase:
        """Return a study that is measured on a platform; ConfigError if there is none."""
        known, study = self.studied(scope), self.studies.get(name)
        if study and name in known:
            return study
        remedy = f"Choose from {', '.join(known) or 'none'}, or add it to "
        if study and scope in study.platforms and study.set not in self.site.sets:
            remedy += f"the measured ones: add its set, {study.set}, to `sets` of config.yaml"
        else:
            remedy += f"{self.folder}/studies.yaml"
        raise ConfigError(f"no study {name!r} on platform {scope!r}", remedy=remedy)

    def _refuse_reserved(self, file: str, names: Iterable[str], reserved: frozenset[str]) -> None:
        for name in reserved.intersection(names):
            raise ConfigError(
                f"{self.folder}/{file}: the name {name!r} is taken by the program itself",
                remedy="Choose another name",
            )

    def _check_known(
        self, file: str, entry: str, kind: str, name: str, known: Iterable[str], *, more: str = ""
    ) -> None:
        if name not in known:
            raise ConfigError(
                f"{self.folder}/{file}: {entry} names the unknown {kind} {name!r}",
                remedy=f"Choose from {', '.join(known)}{more}",
            )


def schemas() -> dict[str, dict[str, Any]]:
    """Return the JSON Schema of each config file, by its name."""
    kinds: dict[str, Any] = {
        "config": Site,
        "platforms": dict[Name, Platform],
        "backends": dict[Name, BackendEnvironment],
        "studies": dict[Name, STUDIES],
        "sources": Sources,
        "weights": dict[Name, WeightsSpec],
        "deployments": dict[Name, DeploymentSpec],
        "cluster": Cluster,
        "takes": dict[Name, dict[Name, Positive]],
    }
    by_name = {name: _dedented(msgspec.json.schema(kind)) for name, kind in kinds.items()}
    _free_of_tag(by_name["studies"]["$defs"])
    # Exactly one of the two, as in the struct.
    by_name["weights"]["$defs"]["WeightsSpec"]["oneOf"] = [
        {"properties": {name: {"not": {"type": "null"}}}, "required": [name]}
        for name in ("member", "random")
    ]
    return by_name


def _dedented(schema: Any) -> Any:
    """Return a schema with dedented descriptions, which equal those of every Python version."""
    if isinstance(schema, dict):
        return {
            key: inspect.cleandoc(value)
            if key == "description" and isinstance(value, str)
            else _dedented(value)
            for key, value in schema.items()
        }
    return [_dedented(item) for item in schema] if isinstance(schema, list | tuple) else schema


def _free_of_tag(defs: dict[str, Any]) -> None:
    """Make the protocol's name optional in `apart`, where only one protocol is allowed."""
    protocol = defs["Interleaved"]
    free = {**protocol, "required": [name for name in protocol["required"] if name != "name"]}
    free["title"] = "Apart"
    defs["Apart"] = free
    defs["ModelStudy"]["properties"]["apart"]["$ref"] = "#/$defs/Apart"
