"""A model of a query on a platform: the backends that may run it, and refusals of its forward."""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from nearfree.backends.dense_kernels import deepgemm_replacement, not_compiled
from nearfree.backends.names import (
    BackendRelease,
    attention_backend,
    dense_backend,
    moe_backend,
)
from nearfree.backends.records import BY_NAME, engine_backend
from nearfree.config.files import Config, DeploymentSpec
from nearfree.config.loads import MeasuredLoads
from nearfree.core.modules.collective import WITH_NORM
from nearfree.core.routing_names import Routing
from nearfree.decoders.decoder import Decoder
from nearfree.decoders.ranks.engines import ENGINES, TRTLLM, VLLM
from nearfree.derive.predict.forecast.attention_choice import other_kernel
from nearfree.derive.predict.forecast.deployment import Deployment
from nearfree.derive.predict.forecast.engine_graphs import graphs_of
from nearfree.derive.predict.forecast.model_classes import ModelClass
from nearfree.derive.predict.forecast.model_query import ModelQuery
from nearfree.derive.predict.forecast.on_record import listed_versions, newest, versions_of
from nearfree.derive.work_model.all_reduce import (
    FLASHINFER_ONE_SHOT,
    FLASHINFER_TWO_SHOT,
    Ranks,
    algorithm_of,
)
from nearfree.errors import ConfigError, Refusal

_DEFAULT_ENGINES = ("vllm", "sglang")
"""Engines that may run experts where the query names none, in order of preference."""


class Backends(NamedTuple):
    """One combination of what runs a model: backends, routing, and the engine's decode kernel.

    `moe` and `routing` are None without experts, `dense` is None for torch, `decoder_kernel` where
    the query names the backend of attention.
    """

    attention: BackendRelease
    moe: BackendRelease | None
    dense: BackendRelease | None
    routing: Routing | None
    decoder_kernel: str | None


class Placement:
    """A model on a platform: the backends that may run it, and the reasons to refuse its forward.

    `engine` is the engine by which memory is sized if the forward is refused. `server` is the named
    engine of a model without experts. `decoder` is None if there are `refusals`, among them those
    of releases `without_class`; `with_class` are the listed releases that have the model's class.
    """

    def __init__(
        self,
        config: Config,
        spec: DeploymentSpec,
        routings: Sequence[Routing],
        model: ModelQuery,
        classes: ModelClass,
    ) -> None:
        self._config, self._classes, self.model = config, classes, model
        moe = self._moe_releases(spec)
        engines = moe or [moe_backend(name) for name in (spec.moe or _DEFAULT_ENGINES)[:1]]
        self.engine = engines[0]
        named_engine = spec.moe and not moe and engines[0].name in ENGINES
        self.server = engines[0] if named_engine else None
        self.backends = list(self._combinations(spec, routings, engines))
        attention = list(dict.fromkeys(backends.attention for backends in self.backends))
        on_gpu = model.sheet.sm is not None
        self.without_class = tuple(classes.refused(engines)) if on_gpu else ()
        self.with_class = classes.releases if self.without_class else ()
        self.refusals = (
            *model.refused(engines, attention), *self._not_compiled(), *self.without_class
        )  # fmt: skip
        self.decoder: Decoder | None = None if self.refusals else model.file.decoder

    def _not_compiled(self) -> Iterator[Refusal]:
        """Yield a refusal of each vLLM whose dense products in the model's formats do not run."""
        precision, sm = self.model.precision, self.model.sheet.sm
        if precision is None or sm is None:
            return
        products = [product for kind, product in precision.products if kind != "experts"]
        for dense in dict.fromkeys(backends.dense for backends in self.backends):
            in_vllm = dense and BY_NAME[dense.name].package == BY_NAME[VLLM.name].package
            if in_vllm and any(not_compiled(rows, stored, sm) for stored, rows in products):
                reason = f"{dense} ends with an error at products in int8 on compute capability"
                remedy = (
                    "Give a model in another format, or a GPU of compute capability 9.0 or less"
                )
                yield Refusal("", "", f"{reason} {sm}", remedy)

    def _moe_releases(self, spec: DeploymentSpec) -> list[BackendRelease]:
        """Return the releases that may run the experts, empty for a model without experts."""
        if not self.model.sparse:
            return []
        named = [newest(self._config, name, moe_backend) for name in spec.moe or _DEFAULT_ENGINES]
        if spec.moe:
            return named
        with_class = [engine for engine in named if not self._classes.lacks(engine)]
        return [self.model.default(with_class or named)]

    def _combinations(
        self,
        spec: DeploymentSpec,
        routings: Sequence[Routing],
        engines: Sequence[BackendRelease],
    ) -> Iterator[Backends]:
        """Yield the backends of each named attention, engine and routing."""
        config, model = self._config, self.model
        quantised = model.dense_quantised and model.sheet.sm is not None
        named = [newest(config, name, attention_backend) for name in spec.attention]
        by_engine = [
            (
                engine,
                _dense(config, spec, engine) if quantised else None,
                named or [_on_record(config, model.attention(engine), engine)],
                None if named else model.decoder_kernel(engine),
            )
            for engine in engines
        ]
        for number in range(len(named) or 1):
            for engine, dense, attention, kernel in by_engine:
                for routing in routings if model.sparse else [None]:
                    moe = engine if model.sparse else None
                    yield Backends(attention[number], moe, dense, routing, kernel)

    def deployments(
        self, spec: DeploymentSpec, loads: MeasuredLoads | None
    ) -> Iterator[Deployment]:
        """Yield its deployments at the default batch size and context; none if it is refused."""
        if self.decoder is None:
            return
        model, sheet, config = self.model, self.model.sheet, self._config
        for attention, moe, dense, routing, decoder_kernel in self.backends:
            engine = moe or self.engine
            graphs = graphs_of(
                config, spec, model.platform, model.parallel, attention=attention, moe=moe
            )
            yield Deployment(
                decoder=self.decoder,
                platform=model.platform,
                attention=attention,
                moe=moe,
                server=None if moe else self.server,
                dense=dense,
                routing=routing,
                loads=loads,
                precision=model.precision_on(moe, dense),
                parallel=model.parallel,
                library=model.library(moe),
                decoder_kernel=decoder_kernel,
                other_kernel=(
                    None if spec.attention else other_kernel(self.decoder, sheet.sm, engine)
                ),
                served=sheet.sm is not None,
                on_cpu=sheet.kind == "cpu",
                revision=model.file.revision,
                positions=(
                    model.file.positions and model.file.positions.of(engine.name, engine.version)
                ),
                assembled=sheet.node_gpus is None,
                node_gpus=sheet.joined_gpus,
                direct_gpus=sheet.direct,
                graphs=graphs,
                dense_kernel=self._without_deepgemm(dense),
                stand_in=model.triton_stands_in(moe),
                drafts_plain=model.file.drafts_plain and not (spec.weights or spec.dtype),
                by_file=model.kernel_by_file(moe),
                class_note=self._classes.caveat(engine) if sheet.sm else None,
                sums_by_flashinfer=self._sums_by_flashinfer(self.decoder, engine),
            )

    def _sums_by_flashinfer(self, decoder: Decoder, engine: BackendRelease) -> bool:
        """Return whether a layer's all-reduces are FlashInfer's; vLLM's if no engine is named."""
        parallel, sheet = self.model.parallel, self.model.sheet
        if engine.name not in ENGINES:
            engine = BackendRelease(VLLM.name)
        rules = ENGINES[engine.name]
        if parallel.tp == 1 or sheet.sm is None or rules.norm_fusion is None:
            return False
        fused = rules.fuses_norms(engine.version, parallel, decoder.model_type)
        algorithm = algorithm_of(
            engine.name,
            engine.version,
            Ranks(
                gpus=parallel.tp,
                sm=sheet.sm,
                nvlink=sheet.nvlink is not None,
                machine=sheet.machine_gpus,
                device=sheet.device_name or "",
            ),
            size=1.0,
            call=WITH_NORM if fused else None,
        )
        return algorithm in (FLASHINFER_ONE_SHOT, FLASHINFER_TWO_SHOT)

    def _without_deepgemm(self, dense: BackendRelease | None) -> str | None:
        """Return the kernel of float8_block products if the engine disables DeepGEMM for them."""
        sm = self.model.sheet.sm
        if self.decoder is None or sm is None or dense is None or dense.version is None:
            return None
        return deepgemm_replacement(dense.version, self.decoder.model_type, sm)


def _dense(config: Config, spec: DeploymentSpec, moe: BackendRelease) -> BackendRelease | None:
    """Return the backend of dense products with quantised weights: as named, or the engine's.

    None stands for torch, also where no release of the engine has rules of them on record.
    """
    if spec.dense:
        return newest(config, spec.dense, dense_backend)
    record = engine_backend(moe.name, "gemm")
    if record is None:
        return None
    (name,) = record.names
    if not versions_of(config, name):
        return None
    return newest(config, f"{name}=={moe.version}" if moe.version else name)


def _on_record(config: Config, names: Iterable[str], engine: BackendRelease) -> BackendRelease:
    """Return the newest release of the first backend that has one on record.

    For a kernel in the engine's own package it is the engine's release, where that is on record.

    Raises
    ------
    ConfigError
        No backend has a release on record; the reason is that of the first, or for TensorRT-LLM,
        of which none is listed, that its release is not named.
    """
    reasons = list[ConfigError]()
    for name in names:
        try:
            release = newest(config, name)
        except ConfigError as error:
            reasons.append(error)
            continue
        in_engine = BY_NAME[release.name].package == BY_NAME[engine.name].package
        listed = engine.version in listed_versions(config, release)
        return BackendRelease(release.name, engine.version) if in_engine and listed else release
    if engine.version is None and engine.name == TRTLLM.name:
        raise ConfigError(
            f"which kernels {engine.name} attends by depends on its release",
            remedy=f"Name one: --moe {engine.name}==VERSION; or other kernels by --attention",
        )
    raise reasons[0]
