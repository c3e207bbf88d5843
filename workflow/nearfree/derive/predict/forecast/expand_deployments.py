"""Expansion of a query to deployments: model files, platforms, and the newest recorded releases."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import combinations, product

from msgspec import structs
from packaging.version import Version

from nearfree.backends.names import (
    BackendRelease,
    attention_backend,
    dense_backend,
    moe_backend,
)
from nearfree.config.files import Config, DeploymentSpec
from nearfree.config.loads import MeasuredLoads
from nearfree.core.precision import Override
from nearfree.decoders.model_file import ModelFile, find_drafter_file, find_model_file
from nearfree.decoders.served import as_served
from nearfree.derive.granularity.releases import Release, ruled_release
from nearfree.derive.predict.answers import Answerer
from nearfree.derive.predict.forecast.degrees import spread_of
from nearfree.derive.predict.forecast.deployment import Deployment
from nearfree.derive.predict.forecast.engine_graphs import ENGINE, NONE, graphs_engine
from nearfree.derive.predict.forecast.model_classes import ModelClass, class_lock
from nearfree.derive.predict.forecast.model_query import ModelQuery, Unanswered
from nearfree.derive.predict.forecast.on_record import listed_versions
from nearfree.derive.predict.forecast.placement import Placement
from nearfree.errors import ConfigError, NearfreeError, RefusedError
from nearfree.hardware.platforms import resolve

MOST = 20_000
"""Most deployments of one query."""


def deployments(
    config: Config,
    spec: DeploymentSpec,
    loads: MeasuredLoads | None = None,
    *,
    drafters: bool = False,
    any_class: bool = False,
) -> list[Deployment]:
    """Return one deployment per combination of the listed values, without duplicates.

    Parameters
    ----------
    loads
        Measured loads of experts, instead of `routing`.
    drafters
        Whether models may be draft heads; their classes are not checked.
    any_class
        Do not check that a release has the model's class.

    Raises
    ------
    ConfigError
        A model, platform or backend is unknown, or there are more combinations than MOST.
    RefusedError
        A model's forward cannot be predicted, with every reason.
    """
    answerable, unanswered = expand(config, spec, loads, drafters=drafters, any_class=any_class)
    if unanswered:
        raise RefusedError([refusal for query in unanswered for refusal in query.refusals])
    return answerable


def expand(
    config: Config,
    spec: DeploymentSpec,
    loads: MeasuredLoads | None = None,
    *,
    drafters: bool = False,
    any_class: bool = False,
) -> tuple[list[Deployment], list[Unanswered]]:
    """Return the deployments whose forward can be predicted, and those whose forward cannot.

    Parameters and errors are those of `deployments`, without the RefusedError.
    """
    spec = _with_listed_releases(config, spec)
    find = find_drafter_file if drafters else find_model_file
    files = list(dict.fromkeys(find(config.folder, name) for name in spec.models))
    override = Override(
        dtype=spec.dtype, weights=spec.weights, activations=spec.activations, kv=spec.kv_dtype
    )
    spread = spread_of(spec)
    _check_names(files)
    platforms = [resolve(config.platforms, name) for name in spec.platforms]
    for file in files:
        if loads and file.decoder:
            loads.check(file.decoder)
    routings = (loads.routing,) if loads else spec.routing
    lock = {} if any_class or drafters else class_lock(config)
    placements = []
    for file in files:
        served, model_class = as_served(file), ModelClass(config, lock, file.architectures)
        for name in platforms:
            sheet = config.platforms[name]
            file_there = file if spec.dtype or sheet.kind == "cpu" else served
            model = ModelQuery(
                file_there,
                override,
                spread,
                moe_backend=spec.moe_backend,
                platform=name,
                sheet=sheet,
            )
            placements.append(Placement(config, spec, routings, model, model_class))
    combined = sum(len(placement.backends) for placement in placements)
    count = combined * len(spec.batch) * len(spec.context)
    if count > MOST:
        raise ConfigError(
            f"{count} deployments are asked about", remedy=f"Ask about {MOST} at most at once"
        )
    conditions = list(product(spec.batch, spec.context))
    expanded = [
        structs.replace(
            deployment,
            batch=batch,
            context=context,
            memory=placement.model.memory(batch, context, deployment.engine),
        )
        for placement in placements
        for deployment in placement.deployments(spec, loads)
        for batch, context in conditions
    ]
    unanswered = [
        structs.replace(
            placement.model.unanswered(placement.refusals, batch, context, placement.engine),
            without_class=placement.without_class,
            with_class=placement.with_class,
        )
        for placement in placements
        if placement.decoder is None
        for batch, context in conditions
    ]
    return list(dict.fromkeys(expanded)), unanswered


@contextmanager
def entry(config: Config, name: str) -> Iterator[None]:
    """Add the name of an entry of deployments.yaml to a ConfigError raised inside."""
    try:
        yield
    except ConfigError as error:
        where = f"{config.folder}/deployments.yaml: {name}"
        raise ConfigError(f"{where}: {error.what}", remedy=error.remedy) from error


def _check_names(files: Sequence[ModelFile]) -> None:
    """Refuse two different models of one name, which answers could not distinguish."""
    for first, second in combinations(files, 2):
        if first.name == second.name:
            raise ConfigError(
                f"two different models are named {first.name}", remedy="Rename one of the files"
            )


def check_releases(config: Config, answerer: Answerer, queries: Sequence[Deployment]) -> None:
    """Refuse queries of a release whose rules are neither recorded nor can be fetched.

    Raises
    ------
    ConfigError
        It names the release, and the recorded releases of its package.
    """
    backends = {
        used
        for query in queries
        for used in (query.attention, query.moe, query.server, query.dense)
        if used and used.version
    }
    ruled = [ruled_release(used.name, used.version) for used in sorted(backends, key=str)]
    graphs = {query.graphs.release for query in queries if query.graphs}
    for release in filter(None, [*ruled, *sorted(graphs)]):
        check_release(config, answerer, release)


def check_release(config: Config, answerer: Answerer, release: Release) -> None:
    """Refuse one release; the error is that of `check_releases`."""
    try:
        answerer.resolver.check(release)
    except NearfreeError as error:
        engine = release.package.removesuffix("-graphs")
        what = error.what
        if engine != release.package:
            what = f"the CUDA graphs of {engine} {release.version} are not on record"
        recorded = [
            name.replace(release.package, engine)
            for name in config.releases
            if name.startswith(f"{release.package}==")
        ]
        raise ConfigError(
            what,
            remedy=f"Recorded in {config.folder}/sources.yaml are "
            f"{', '.join(recorded) or 'none'}; --online reads any other one",
        ) from error


def _with_listed_releases(config: Config, spec: DeploymentSpec) -> DeploymentSpec:
    """Return a query whose releases are spelled as in sources.yaml.

    A name that is no backend of attention, of experts, of dense products or of graphs is refused.
    """

    def listed(text: str, read: Callable[[str], BackendRelease]) -> str:
        release = read(text)
        name, _, version = text.partition("==")
        versions = listed_versions(config, release) if version else []
        return next((f"{name}=={v}" for v in versions if Version(v) == Version(version)), text)

    return structs.replace(
        spec,
        attention=tuple(listed(name, attention_backend) for name in spec.attention),
        moe=tuple(listed(name, moe_backend) for name in spec.moe),
        dense=spec.dense and listed(spec.dense, dense_backend),
        graphs=spec.graphs if spec.graphs in (NONE, ENGINE) else listed(spec.graphs, graphs_engine),
    )
