"""From names to deployments: model files, platforms, and the newest recorded release."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import combinations, product

from msgspec import structs
from packaging.version import Version

from nearfree.backends.dense_kernels import instead_of_deepgemm
from nearfree.backends.names import (
    BackendRelease,
    attention_backend,
    backend,
    dense_backend,
    moe_backend,
)
from nearfree.backends.records import BY_NAME, of_engine
from nearfree.config.files import Config, DeploymentSpec
from nearfree.config.loads import MeasuredLoads
from nearfree.core.precision import Override
from nearfree.core.routing_names import Routing
from nearfree.decoders.engines import ENGINES
from nearfree.decoders.model_file import ModelFile, find_drafter_file, find_model_file
from nearfree.decoders.served import as_served
from nearfree.derive.granularity.releases import Release, ruled_release
from nearfree.derive.predict.answers import Answerer
from nearfree.derive.predict.forecast.asked_model import AskedModel, Unanswered
from nearfree.derive.predict.forecast.attention_choice import other_kernel
from nearfree.derive.predict.forecast.degrees import spread_of
from nearfree.derive.predict.forecast.deployment import Deployment
from nearfree.derive.predict.forecast.engine_graphs import graphs_of
from nearfree.derive.predict.forecast.model_classes import ModelClass, class_lock
from nearfree.derive.predict.forecast.on_record import listed_of, newest, versions_of
from nearfree.errors import ConfigError, NearfreeError, RefusedError
from nearfree.hardware.platforms import resolve

MOST = 20_000
"""Deployments that one question may ask about."""


def deployments(
    config: Config,
    spec: DeploymentSpec,
    loads: MeasuredLoads | None = None,
    *,
    drafters: bool = False,
    any_class: bool = False,
) -> list[Deployment]:
    """Return one deployment a combination of what is listed.

    What is listed twice is asked about once. Measured loads stand in the place of `routing`. The
    models may be heads, which draft for others, where they are asked about as `drafters`. With
    `any_class` no release is asked whether it has the class of a model, nor with `drafters`.

    Raises
    ------
    ConfigError
        A model, platform or backend that nothing knows, or more combinations than MOST.
    RefusedError
        A model's forward is not predicted, with every reason.
    """
    answerable, unanswered = asked_about(
        config, spec, loads, drafters=drafters, any_class=any_class
    )
    if unanswered:
        raise RefusedError([refusal for query in unanswered for refusal in query.refusals])
    return answerable


def asked_about(
    config: Config,
    spec: DeploymentSpec,
    loads: MeasuredLoads | None = None,
    *,
    drafters: bool = False,
    any_class: bool = False,
) -> tuple[list[Deployment], list[Unanswered]]:
    """Return the deployments whose forward can be predicted, and those of which it cannot.

    Raises
    ------
    ConfigError
        As `deployments`.
    """
    spec = _with_listed_releases(config, spec)
    find = find_drafter_file if drafters else find_model_file
    files = list(dict.fromkeys(find(config.folder, name) for name in spec.models))
    override = Override(
        dtype=spec.dtype, weights=spec.weights, activations=spec.activations, kv=spec.kv_dtype
    )
    spread = spread_of(spec)
    cpu_models = [AskedModel(file, override, spread, spec.moe_backend) for file in files]
    gpu_files = files if spec.dtype else map(as_served, files)
    gpu_models = [AskedModel(file, override, spread, spec.moe_backend) for file in gpu_files]
    _check_names(files)
    platforms = [resolve(config.platforms, name) for name in spec.platforms]
    for name in spec.attention:
        attention_backend(name)
    for name in spec.moe:
        moe_backend(name)
    if spec.dense:
        dense_backend(spec.dense)
    if loads:
        for placement in cpu_models:
            if placement.file.decoder:
                loads.check(placement.file.decoder)
    routings = (loads.routing,) if loads else spec.routing
    lock = {} if any_class or drafters else class_lock(config)
    classes = [ModelClass(config, lock, file.architectures) for file in files]
    placements = [
        _Placement(config, spec, routings, cpu if on_cpu else gpu, name, classes=model_class)
        for (cpu, gpu, model_class), name in product(
            zip(cpu_models, gpu_models, classes, strict=True), platforms
        )
        for on_cpu in (config.platforms[name].kind == "cpu",)
    ]
    count = (
        sum(len(placement.run) for placement in placements) * len(spec.batch) * len(spec.context)
    )
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
            memory=placement.model.memory(placement.sheet, batch, context, deployment.engine),
        )
        for placement in placements
        for deployment in _placed_deployments(placement, config, spec, loads)
        for batch, context in conditions
    ]
    unanswered = [
        placement.model.unanswered(
            placement.platform,
            placement.refusals,
            batch,
            context,
            placement.model.memory(placement.sheet, batch, context, placement.engine),
        )
        for placement in placements
        if placement.decoder is None
        for batch, context in conditions
    ]
    return list(dict.fromkeys(expanded)), unanswered


def _placed_deployments(
    placement: "_Placement", config: Config, spec: DeploymentSpec, loads: MeasuredLoads | None
) -> Iterator[Deployment]:
    """Yield what deployments of a model on a platform share at any batch size and context."""
    parallel = spread_of(spec).parallel
    if placement.decoder is None:
        return
    for attention, moe, dense, routing, decoder_kernel in placement.run:
        yield Deployment(
            decoder=placement.decoder,
            platform=placement.platform,
            attention=attention,
            moe=moe,
            server=None if moe else placement.server,
            dense=dense,
            routing=routing,
            loads=loads,
            precision=placement.model.precision_on(placement.sheet, moe, dense),
            parallel=parallel,
            library=placement.model.library(moe, placement.sheet),
            decoder_kernel=decoder_kernel,
            other_kernel=None
            if spec.attention
            else other_kernel(placement.decoder, placement.sheet.sm, moe or placement.engine),
            served=placement.sheet.sm is not None,
            on_cpu=placement.sheet.kind == "cpu",
            revision=placement.model.file.revision,
            positions=placement.model.file.positions,
            assembled=placement.sheet.node_gpus is None,
            node_gpus=placement.sheet.joined_gpus,
            direct_gpus=placement.sheet.direct,
            graphs=graphs_of(
                config, spec, placement.platform, parallel, attention=attention, moe=moe
            ),
            dense_kernel=_without_deepgemm(placement, dense),
            stand_in=placement.model.stands_in(moe, placement.sheet),
            drafts_plain=placement.model.file.drafts_plain and not (spec.weights or spec.dtype),
            by_file=placement.model.by_file(moe, placement.sheet),
            class_note=placement.classes.caveat(moe or placement.engine)
            if placement.sheet.sm
            else None,
            instead=placement.model.instead(moe, _alternatives(config, moe), placement.sheet)
            if moe
            else (),
        )


def _without_deepgemm(placement: "_Placement", dense: BackendRelease | None) -> str | None:
    """Return what runs products in float8_block where their engine turns DeepGEMM off for them."""
    if (
        placement.decoder is None
        or placement.sheet.sm is None
        or dense is None
        or dense.version is None
    ):
        return None
    return instead_of_deepgemm(dense.version, placement.decoder.model_type, placement.sheet.sm)


class _Placement:
    """A model on a platform: what may run its experts, and why its forward is not predicted.

    `run` is what runs its attention, its experts and its dense products of quantised weights, the
    routing, and the kernel by which the engine decodes where nobody names one; one without experts
    has neither them nor a routing, and `server` is then the engine that is named. `engine` is whose
    sizes memory has where the forward is not predicted.
    """

    def __init__(
        self,
        config: Config,
        spec: DeploymentSpec,
        routings: Sequence[Routing],
        model: AskedModel,
        platform: str,
        *,
        classes: ModelClass,
    ) -> None:
        self.model, self.platform, self.sheet = model, platform, config.platforms[platform]
        self.classes = classes
        moe = list[BackendRelease]()
        if model.sparse:
            moe = [newest(config, name, moe_backend) for name in spec.moe or _DEFAULT_ENGINES]
            if not spec.moe:
                with_class = [engine for engine in moe if not classes.lacks(engine)]
                moe = [model.default(with_class or moe, self.sheet)]
        engines = moe or [moe_backend(name) for name in (spec.moe or _DEFAULT_ENGINES)[:1]]
        self.engine = engines[0]
        served = spec.moe and not moe and engines[0].name in ENGINES
        self.server = engines[0] if served else None
        quantised = model.dense_quantised and self.sheet.sm is not None
        dense = {engine: _dense(config, spec, engine) if quantised else None for engine in engines}
        engine_routings = list(product(engines, routings)) if model.sparse else [(engines[0], None)]
        named_attention = [newest(config, name, attention_backend) for name in spec.attention]
        attention_of = {
            engine: named_attention
            or [_on_record(config, model.attention(self.sheet, engine), engine)]
            for engine in engines
        }
        decode_kernels = {
            engine: None if named_attention else model.decoder_kernel(self.sheet, engine)
            for engine in engines
        }
        self.run: list[_Run] = [
            (
                attention_of[engine][place],
                engine if moe else None,
                dense[engine],
                routing,
                decode_kernels[engine],
            )
            for place in range(len(named_attention) or 1)
            for engine, routing in engine_routings
        ]
        attention = dict.fromkeys(release for engine in attention_of.values() for release in engine)
        class_refusals = classes.refused(engines) if self.sheet.sm is not None else ()
        self.refusals = (
            *model.refused(self.sheet, platform, engines, list(attention)),
            *class_refusals,
        )
        self.decoder = None if self.refusals else model.file.decoder


_Run = tuple[
    BackendRelease, BackendRelease | None, BackendRelease | None, Routing | None, str | None
]


def _dense(config: Config, spec: DeploymentSpec, moe: BackendRelease) -> BackendRelease | None:
    """Return what runs dense products of quantised weights: as named, or the engine of the experts.

    None is torch; so it is where no release of the engine has rules of them on record.
    """
    if spec.dense:
        return newest(config, spec.dense, dense_backend)
    record = of_engine(moe.name, "gemm")
    if record is None:
        return None
    (name,) = record.names
    recorded = [release for release in config.releases if release.startswith(f"{name}==")]
    if not recorded:
        return None
    return newest(config, f"{name}=={moe.version}" if moe.version else name)


_DEFAULT_ENGINES = ("vllm", "sglang")
"""What may run experts where nobody says it, the first before the others."""


@contextmanager
def entry(config: Config, name: str) -> Iterator[None]:
    """Say of a refusal which entry of deployments.yaml it is of."""
    try:
        yield
    except ConfigError as error:
        where = f"{config.folder}/deployments.yaml: {name}"
        raise ConfigError(f"{where}: {error.what}", remedy=error.remedy) from error


def _check_names(files: Sequence[ModelFile]) -> None:
    """Refuse two models of one name, which no answer could tell apart."""
    for first, second in combinations(files, 2):
        if first.name == second.name:
            raise ConfigError(
                f"two different models are named {first.name}", remedy="Rename one of the files"
            )


def check_releases(config: Config, answerer: Answerer, queries: Sequence[Deployment]) -> None:
    """Refuse a release whose rules are neither recorded nor to be had.

    Raises
    ------
    ConfigError
        Which one, and which releases of the package are recorded.
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
        answerer.check(*release)
    except NearfreeError as error:
        recorded = [name for name in config.releases if name.startswith(f"{release.package}==")]
        raise ConfigError(
            error.what,
            remedy=f"Recorded in {config.folder}/sources.yaml are "
            f"{', '.join(recorded) or 'none'}; --online reads any other one",
        ) from error


def _on_record(config: Config, names: Iterable[str], engine: BackendRelease) -> BackendRelease:
    """Return the newest release of the first of some backends that has one on record.

    Of a kernel in an engine's own package it is the engine's release, where that is on record.

    Raises
    ------
    ConfigError
        None has; the reason is that of the first.
    """
    reasons = list[ConfigError]()
    for name in names:
        try:
            release = newest(config, name)
        except ConfigError as error:
            reasons.append(error)
            continue
        in_engine = BY_NAME[release.name].package == BY_NAME[engine.name].package
        listed = engine.version in versions_of(config, release)
        return BackendRelease(release.name, engine.version) if in_engine and listed else release
    raise reasons[0]


def _alternatives(config: Config, engine: BackendRelease) -> list[BackendRelease]:
    """Return the releases that sources.yaml lists of an engine, then of others, newest first."""
    engines = map(BackendRelease, dict.fromkeys((engine.name, *_DEFAULT_ENGINES)))
    return [release for engine_name in engines for release in listed_of(config, engine_name)]


def _with_listed_releases(config: Config, spec: DeploymentSpec) -> DeploymentSpec:
    """Return a question whose releases are written as sources.yaml writes the same version."""

    def listed(text: str) -> str:
        name, _, version = text.partition("==")
        versions = versions_of(config, backend(text)) if version else []
        return next(
            (
                f"{name}=={listed_version}"
                for listed_version in versions
                if Version(listed_version) == Version(version)
            ),
            text,
        )

    return structs.replace(
        spec,
        attention=tuple(map(listed, spec.attention)),
        moe=tuple(map(listed, spec.moe)),
        dense=spec.dense and listed(spec.dense),
        graphs=listed(spec.graphs),
    )
