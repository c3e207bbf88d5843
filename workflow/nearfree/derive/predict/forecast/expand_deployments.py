"""From names to deployments: model files, platforms, and the newest recorded release."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import combinations, product
from typing import Any

from msgspec import Struct
from packaging.version import Version

from nearfree.backends.names import BackendRelease, attention_backend, backend, moe_backend
from nearfree.config.files import Config, DeploymentSpec
from nearfree.config.loads import MeasuredLoads
from nearfree.core.precision import PLAIN, Dtype, Override
from nearfree.decoders.model_file import ModelFile, find_model_file
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


def deployments(
    config: Config, spec: DeploymentSpec, loads: MeasuredLoads | None = None
) -> list[Deployment]:
    """Return one deployment a combination of what is listed.

    What is listed twice is asked about once. Measured loads stand in the place of `routing`.

    Raises
    ------
    ConfigError
        A model, platform or backend that nothing knows, or more combinations than MOST.
    RefusedError
        A model's forward is not predicted, with every reason.
    """
    answerable, others = asked_about(config, spec, loads)
    if others:
        raise RefusedError([refusal for each in others for refusal in each.refusals])
    return answerable


def asked_about(
    config: Config, spec: DeploymentSpec, loads: MeasuredLoads | None = None
) -> tuple[list[Deployment], list[Unanswered]]:
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
    read = [_Read(file, override, spec.gpus) for file in dict.fromkeys(files)]
    decoders = [each.decoder for each in read if each.decoder]
    platforms = [resolve(config.platforms, name) for name in spec.platforms]
    attention = {each: [newest(config, release, attention_backend)
                 for release in spec.attention or (each.attention,)] for each in read}  # fmt: skip
    sparse = any(decoder.experts for decoder in decoders)
    moe = [newest(config, e, moe_backend) if sparse else moe_backend(e) for e in spec.moe]
    if loads:
        for decoder in decoders:
            loads.check(decoder)
    routed = tuple(product(moe, (loads.routing,) if loads else spec.routing))
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
            loads=loads,
            batch=batch,
            context=context,
            precision=each.precision,
            memory=each.memory(config.platforms[platform], batch, context),
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

    def __init__(self, file: ModelFile, override: Override, gpus: int) -> None:
        self.file, self._gpus = file, gpus
        several = _SEVERAL_GPUS._replace(reason=f"{gpus} {_SEVERAL_GPUS.reason}")
        self.refusals = (
            *file.refusals,
            *(() if override.stores_all else file.mixed),
            *((several,) if gpus > 1 else ()),
        )
        self.precision = override.of(file.precision) if file.precision else None
        self.decoder = None if self.refusals else file.decoder
        self._needs = needs(file, self.precision)

    @property
    def attention(self) -> str:
        """What runs attention where nobody says it: flash-attn has no kernel for other caches."""
        plain = self.precision is None or self.precision.kv in PLAIN
        return "flash-attn" if plain else "flashinfer"

    def memory(self, platform: Platform, batch: int, context: int) -> Memory | None:
        """Return what it takes on a platform; None where that is not known."""
        if self._needs is None:
            return None
        return memory(
            self._needs, platform.memory_gb, gpus=self._gpus, batch=batch, context=context
        )

    def unanswered(self, name: str, platform: Platform, batch: int, context: int) -> Unanswered:
        """Return what is known of it on a platform, and why its forward is not."""
        precision = self.precision.said(self.file.main) if self.precision else None
        return Unanswered(
            about={
                "model": self.file.name,
                "platform": name,
                "dtype": precision["activations"] if precision else None,
                "batch": batch,
                "context": context,
            },
            precision=precision,
            memory=self.memory(platform, batch, context),
            refusals=self.refusals,
        )


_SEVERAL_GPUS = Refusal(
    "",
    "gpus",
    "is more than one, and forwards are predicted on one GPU alone",
    "Leave it out for a forward; what `nearfree predict` says of memory holds for all of them",
)


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
