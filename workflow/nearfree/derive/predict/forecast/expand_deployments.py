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
    answerable, others = asked_about(config, spec, loads, drafters=drafters, any_class=any_class)
    if others:
        raise RefusedError([refusal for each in others for refusal in each.refusals])
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
    spec = _as_listed(config, spec)
    find = find_drafter_file if drafters else find_model_file
    files = list(dict.fromkeys(find(config.folder, name) for name in spec.models))
    override = Override(
        dtype=spec.dtype, weights=spec.weights, activations=spec.activations, kv=spec.kv_dtype
    )
    spread = spread_of(spec)
    read = [AskedModel(file, override, spread, spec.moe_backend) for file in files]
    taken = files if spec.dtype else map(as_served, files)
    on_gpus = [AskedModel(file, override, spread, spec.moe_backend) for file in taken]
    _distinct(files)
    platforms = [resolve(config.platforms, name) for name in spec.platforms]
    for name in spec.attention:
        attention_backend(name)
    for name in spec.moe:
        moe_backend(name)
    if spec.dense:
        dense_backend(spec.dense)
    if loads:
        for each in read:
            if each.file.decoder:
                loads.check(each.file.decoder)
    routings = (loads.routing,) if loads else spec.routing
    lock = {} if any_class or drafters else class_lock(config)
    classes = [ModelClass(config, lock, file.architectures) for file in files]
    asked = [
        _On(config, spec, routings, own if on_cpu else gpu, name, classes=of)
        for (own, gpu, of), name in product(zip(read, on_gpus, classes, strict=True), platforms)
        for on_cpu in (config.platforms[name].kind == "cpu",)
    ]
    count = sum(len(each.run) for each in asked) * len(spec.batch) * len(spec.context)
    if count > MOST:
        raise ConfigError(
            f"{count} deployments are asked about", remedy=f"Ask about {MOST} at most at once"
        )
    served = list(product(spec.batch, spec.context))
    expanded = [
        structs.replace(
            alike,
            batch=batch,
            context=context,
            memory=each.model.memory(each.sheet, batch, context, alike.engine),
        )
        for each in asked
        for alike in _alike(each, config, spec, loads)
        for batch, context in served
    ]
    others = [
        each.model.unanswered(
            each.platform,
            each.refusals,
            batch,
            context,
            each.model.memory(each.sheet, batch, context, each.engine),
        )
        for each in asked
        if each.decoder is None
        for batch, context in served
    ]
    return list(dict.fromkeys(expanded)), others


def _alike(
    each: "_On", config: Config, spec: DeploymentSpec, loads: MeasuredLoads | None
) -> Iterator[Deployment]:
    """Yield what deployments of a model on a platform share at any batch size and context."""
    parallel = spread_of(spec).parallel
    if each.decoder is None:
        return
    for attention, moe, dense, routing, decoder_kernel in each.run:
        yield Deployment(
            decoder=each.decoder,
            platform=each.platform,
            attention=attention,
            moe=moe,
            server=None if moe else each.server,
            dense=dense,
            routing=routing,
            loads=loads,
            precision=each.model.precision_on(each.sheet, moe, dense),
            parallel=parallel,
            library=each.model.library(moe, each.sheet),
            decoder_kernel=decoder_kernel,
            other_kernel=None
            if spec.attention
            else other_kernel(each.decoder, each.sheet.sm, moe or each.engine),
            served=each.sheet.sm is not None,
            on_cpu=each.sheet.kind == "cpu",
            revision=each.model.file.revision,
            positions=each.model.file.positions,
            assembled=each.sheet.node_gpus is None,
            node_gpus=each.sheet.joined_gpus,
            direct_gpus=each.sheet.direct,
            graphs=graphs_of(config, spec, each.platform, parallel, attention=attention, moe=moe),
            dense_kernel=_without_deepgemm(each, dense),
            stand_in=each.model.stands_in(moe, each.sheet),
            drafts_plain=each.model.file.drafts_plain and not (spec.weights or spec.dtype),
            by_file=each.model.by_file(moe, each.sheet),
            class_note=each.classes.caveat(moe or each.engine) if each.sheet.sm else None,
            instead=each.model.instead(moe, _others(config, moe), each.sheet) if moe else (),
        )


def _without_deepgemm(each: "_On", dense: BackendRelease | None) -> str | None:
    """Return what runs products in float8_block where their engine turns DeepGEMM off for them."""
    if each.decoder is None or each.sheet.sm is None or dense is None or dense.version is None:
        return None
    return instead_of_deepgemm(dense.version, each.decoder.model_type, each.sheet.sm)


class _On:
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
            moe = [newest(config, name, moe_backend) for name in spec.moe or _MOE]
            if not spec.moe:
                having = [each for each in moe if not classes.lacks(each)]
                moe = [model.default(having or moe, self.sheet)]
        engines = moe or [moe_backend(name) for name in (spec.moe or _MOE)[:1]]
        self.engine = engines[0]
        served = spec.moe and not moe and engines[0].name in ENGINES
        self.server = engines[0] if served else None
        quantised = model.dense_quantised and self.sheet.sm is not None
        dense = {each: _dense(config, spec, each) if quantised else None for each in engines}
        routed = list(product(engines, routings)) if model.sparse else [(engines[0], None)]
        named = [newest(config, name, attention_backend) for name in spec.attention]
        beside = {
            each: named or [_on_record(config, model.attention(self.sheet, each), each)]
            for each in engines
        }
        decoding = {
            each: None if named else model.decoder_kernel(self.sheet, each) for each in engines
        }
        self.run: list[_Runs] = [
            (
                beside[engine][place],
                engine if moe else None,
                dense[engine],
                routing,
                decoding[engine],
            )
            for place in range(len(named) or 1)
            for engine, routing in routed
        ]
        attention = dict.fromkeys(release for each in beside.values() for release in each)
        lacking = classes.refused(engines) if self.sheet.sm is not None else ()
        self.refusals = (
            *model.refused(self.sheet, platform, engines, list(attention)),
            *lacking,
        )
        self.decoder = None if self.refusals else model.file.decoder


_Runs = tuple[
    BackendRelease, BackendRelease | None, BackendRelease | None, Routing | None, str | None
]


def _dense(config: Config, spec: DeploymentSpec, moe: BackendRelease) -> BackendRelease | None:
    """Return what runs dense products of quantised weights: as named, or the engine of the experts.

    None is torch; so it is where no release of the engine has rules of them on record.
    """
    if spec.dense:
        return newest(config, spec.dense, dense_backend)
    found = of_engine(moe.name, "gemm")
    if found is None:
        return None
    (name,) = found.names
    known = [release for release in config.releases if release.startswith(f"{name}==")]
    if not known:
        return None
    return newest(config, f"{name}=={moe.version}" if moe.version else name)


_MOE = ("vllm", "sglang")
"""What may run experts where nobody says it, the first before the others."""


@contextmanager
def entry(config: Config, name: str) -> Iterator[None]:
    """Say of a refusal which entry of deployments.yaml it is of."""
    try:
        yield
    except ConfigError as error:
        where = f"{config.folder}/deployments.yaml: {name}"
        raise ConfigError(f"{where}: {error.what}", remedy=error.remedy) from error


def _distinct(files: Sequence[ModelFile]) -> None:
    """Refuse two models of one name, which no answer could tell apart."""
    for one, other in combinations(files, 2):
        if one.name == other.name:
            raise ConfigError(
                f"two different models are named {one.name}", remedy="Rename one of the files"
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
        known = [name for name in config.releases if name.startswith(f"{release.package}==")]
        raise ConfigError(
            error.what,
            remedy=f"Recorded in {config.folder}/sources.yaml are "
            f"{', '.join(known) or 'none'}; --online reads any other one",
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
            found = newest(config, name)
        except ConfigError as error:
            reasons.append(error)
            continue
        own = BY_NAME[found.name].package == BY_NAME[engine.name].package
        listed = engine.version in versions_of(config, found)
        return BackendRelease(found.name, engine.version) if own and listed else found
    raise reasons[0]


def _others(config: Config, engine: BackendRelease) -> list[BackendRelease]:
    """Return the releases that sources.yaml lists of an engine, then of others, newest first."""
    engines = map(BackendRelease, dict.fromkeys((engine.name, *_MOE)))
    return [release for of in engines for release in listed_of(config, of)]


def _as_listed(config: Config, spec: DeploymentSpec) -> DeploymentSpec:
    """Return a question whose releases are written as sources.yaml writes the same version."""

    def listed(text: str) -> str:
        name, _, version = text.partition("==")
        known = versions_of(config, backend(text)) if version else []
        return next((f"{name}=={v}" for v in known if Version(v) == Version(version)), text)

    return structs.replace(
        spec,
        attention=tuple(map(listed, spec.attention)),
        moe=tuple(map(listed, spec.moe)),
        dense=spec.dense and listed(spec.dense),
        graphs=listed(spec.graphs),
    )
