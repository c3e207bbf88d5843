"""From names to deployments: model files, platforms, and the newest recorded release."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import combinations, product
from typing import Any

from msgspec import Struct
from packaging.version import Version

from nearfree.backends.names import BackendRelease, attention_backend, backend, moe_backend
from nearfree.config.files import Config, DeploymentSpec
from nearfree.core.parallel import ALONE, Parallel
from nearfree.core.precision import GROUPS, PLAIN, QUANTISED, Dtype, Override
from nearfree.decoders.engines import SGLANG, VLLM, Engine, engine_of
from nearfree.decoders.model_file import ModelFile, find_model_file
from nearfree.decoders.shards import refusals
from nearfree.derive.granularity.releases import ruled_release
from nearfree.derive.memory import Memory, memory, needs
from nearfree.derive.predict.answers import Answerer
from nearfree.derive.predict.forecast.deployment import Deployment
from nearfree.errors import ConfigError, NearfreeError, Refusal, RefusedError
from nearfree.hardware.platforms import Platform, resolve

MOST = 20_000
"""Deployments that one question may ask about."""


class Unanswered(Struct, frozen=True, kw_only=True):
    """A deployment whose forward is not predicted, and every reason why."""

    about: dict[str, Any]
    precision: dict[str, Dtype] | None
    memory: Memory | None
    refusals: tuple[Refusal, ...]


def deployments(config: Config, spec: DeploymentSpec) -> list[Deployment]:
    """Return one deployment a combination of what is listed.

    What is listed twice is asked about once.

    Raises
    ------
    ConfigError
        A model, platform or backend that nothing knows, or more combinations than MOST.
    RefusedError
        A model's forward is not predicted, with every reason.
    """
    answerable, others = asked_about(config, spec)
    if others:
        raise RefusedError([refusal for each in others for refusal in each.refusals])
    return answerable


def asked_about(config: Config, spec: DeploymentSpec) -> tuple[list[Deployment], list[Unanswered]]:
    """Return the deployments whose forward can be predicted, and those of which it cannot.

    Raises
    ------
    ConfigError
        As `deployments`.
    """
    files = [find_model_file(config.folder, name) for name in spec.models]
    override = Override(
        dtype=spec.dtype, weights=spec.weights, activations=spec.activations, kv=spec.kv_dtype
    )
    spread, unspread = parallel_of(spec)
    named = spec.moe or (default_moe(spread),)
    engines = list(dict.fromkeys(engine_of(moe_backend(each).name) for each in named))
    read = [_Read(file, override, spread, engines, unspread) for file in dict.fromkeys(files)]
    decoders = [each.decoder for each in read if each.decoder]
    platforms = [resolve(config.platforms, name) for name in spec.platforms]
    attention = {each: [newest(config, release, attention_backend)
                 for release in spec.attention or (each.attention,)] for each in read}  # fmt: skip
    sparse = any(decoder.experts for decoder in decoders)
    moe = [newest(config, each, moe_backend) if sparse else moe_backend(each) for each in named]
    routed = tuple(product(moe, spec.routing))
    _distinct([each.file for each in read])
    kinds = sum(
        len(attention[each]) * (len(routed) if each.decoder and each.decoder.experts else 1)
        for each in read
    )
    count = kinds * len(platforms) * len(spec.batch) * len(spec.context)
    if count > MOST:
        raise ConfigError(
            f"{count} deployments are asked about", remedy=f"Ask about {MOST} at most at once"
        )
    expanded = [
        Deployment(
            decoder=each.decoder,
            platform=platform,
            attention=runs,
            moe=experts,
            routing=routing,
            batch=batch,
            context=context,
            precision=each.precision,
            parallel=spread,
            memory=each.memory(config.platforms[platform], batch, context, experts),
        )
        for each, platform in product(read, platforms)
        if each.decoder
        for runs in attention[each]
        for experts, routing in (routed if each.decoder.experts else ((None, None),))
        for batch, context in product(spec.batch, spec.context)
    ]
    others = [
        each.unanswered(platform, config.platforms[platform], batch, context)
        for each, platform in product(read, platforms)
        if each.decoder is None
        for batch, context in product(spec.batch, spec.context)
    ]
    return list(dict.fromkeys(expanded)), others


class _Read:
    """A model's files, in the precision that is asked for."""

    def __init__(
        self,
        file: ModelFile,
        override: Override,
        parallel: Parallel,
        engines: Sequence[Engine],
        unspread: Sequence[Refusal],
    ) -> None:
        """Take the degrees of parallelism, and why they are none of any deployment."""
        self.file, self._parallel, self._engines = file, parallel, engines
        self.precision = override.of(file.precision) if file.precision else None
        self.refusals = tuple(
            dict.fromkeys(
                [
                    *file.refusals,
                    *(() if override.stores_all else file.mixed),
                    *unspread,
                    *self._uncut(),
                ]
            )
        )
        self.decoder = None if self.refusals else file.decoder
        self._needs = needs(file, self.precision)

    @property
    def attention(self) -> str:
        """What runs attention where nobody says it: flash-attn has no kernel for other caches."""
        plain = self.precision is None or self.precision.kv in PLAIN
        return "flash-attn" if plain else "flashinfer"

    def _uncut(self) -> Iterator[Refusal]:
        """Yield why an engine does not spread the model so."""
        decoder, parallel = self.file.decoder, self._parallel
        if decoder is None or parallel == ALONE:
            return
        for engine in self._engines if decoder.experts else (VLLM,):
            yield from refusals(decoder, parallel, engine, self._groups())

    def _groups(self) -> dict[str, tuple[int, int]]:
        """Return outputs and inputs that share a scale, by kind, as the weights are stored."""
        own, asked = self.file.precision, self.precision
        if own is None or asked is None:
            return {}
        found = {}
        own_groups = {kind: (rows, columns) for kind, rows, columns in self.file.groups}
        for kind in QUANTISED:
            stored = getattr(asked, kind).weights
            kept = stored == getattr(own, kind).weights
            found[kind] = (own_groups if kept else GROUPS).get(kind if kept else stored, (1, 1))
        return found

    def memory(
        self, platform: Platform, batch: int, context: int, moe: BackendRelease | None = None
    ) -> Memory | None:
        """Return what it takes on a platform; None where that is not known."""
        if self._needs is None:
            return None
        return memory(
            self._needs,
            platform.memory_gb,
            parallel=self._parallel,
            engine=engine_of(moe.name) if moe else self._engines[0],
            batch=batch,
            context=context,
        )

    def unanswered(self, name: str, platform: Platform, batch: int, context: int) -> Unanswered:
        """Return what is known of it on a platform, and why its forward is not."""
        precision = self.precision.said(self.file.main) if self.precision else None
        return Unanswered(
            about={
                "model": self.file.name,
                "platform": name,
                "dtype": precision["activations"] if precision else None,
                "parallel": self._parallel.said,
                "batch": batch,
                "context": context,
            },
            precision=precision,
            memory=self.memory(platform, batch, context),
            refusals=self.refusals,
        )


def parallel_of(spec: DeploymentSpec) -> tuple[Parallel, tuple[Refusal, ...]]:
    """Return the degrees of parallelism that are asked for, and why they are none of a deployment.

    GPUs alone share each matrix, as engines take them. Where ep does not fit it is left out.
    """
    degrees = {"tp": spec.tp, "dp": spec.dp, "ep": spec.ep, "pp": spec.pp}
    found = list[Refusal]()
    if spec.gpus is not None and set(degrees.values()) == {1}:
        degrees["tp"] = spec.gpus
    try:
        spread = Parallel(**degrees)
    except ConfigError as error:
        found.append(Refusal("", "", error.what, error.remedy))
        spread = Parallel(**degrees | {"ep": 1})
    if spec.gpus not in (None, spread.gpus):
        reason = (
            f"{spec.gpus} are not the {spread.gpus} of tp {spread.tp} x dp {spread.dp} x pp "
            f"{spread.pp}"
        )
        found.append(Refusal("", "gpus", reason, f"Give {spread.gpus}, or leave --gpus out"))
    return spread, tuple(found)


def default_moe(parallel: Parallel) -> str:
    """Return whose experts are meant where nobody says it: vLLM's, where it spreads them so."""
    return VLLM.name if parallel.ep in (1, parallel.ranks) else SGLANG.name


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
    backends = {b for query in queries for b in (query.attention, query.moe) if b}
    for used in sorted(backends, key=str):
        release = ruled_release(used.name, used.version)
        if release is None:
            continue
        try:
            answerer.check(*release)
        except NearfreeError as error:
            package = release.package
            known = [name for name in config.releases if name.startswith(f"{package}==")]
            raise ConfigError(
                error.what,
                remedy=f"Recorded in {config.folder}/sources.yaml are "
                f"{', '.join(known) or 'none'}; --online reads any other one",
            ) from error


def newest(
    config: Config, text: str, read: Callable[[str], BackendRelease] = backend
) -> BackendRelease:
    """Return the backend that a release names, or a package's newest release of sources.yaml.

    Parameters
    ----------
    read
        What reads a name: any backend, or one that runs what is wanted.

    Raises
    ------
    ConfigError
        The package is unknown, runs something else, or has no release on record.
    """
    requested = read(text)
    release = ruled_release(requested.name, requested.version or "0")
    if requested.version is not None or release is None:
        return requested
    listed = [name.split("==") for name in config.releases]
    known = [version for package, version in listed if package == release.package]
    if not known:
        raise ConfigError(
            f"no release of {text} is listed in {config.folder}/sources.yaml",
            remedy="Name one: package==version",
        )
    return backend(f"{text}=={max(known, key=Version)}")
