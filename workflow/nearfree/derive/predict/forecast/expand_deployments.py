"""From names to deployments: model files, platforms, and the newest recorded release."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import combinations, product

from packaging.version import Version

from nearfree.backends.names import BackendRelease, attention_backend, backend, moe_backend
from nearfree.config.files import Config, DeploymentSpec
from nearfree.core.precision import Override, uniform
from nearfree.decoders.config_file import find_decoder
from nearfree.decoders.decoder import Decoder
from nearfree.derive.granularity.releases import ruled_release
from nearfree.derive.predict.answers import Answerer
from nearfree.derive.predict.forecast.deployment import Deployment
from nearfree.errors import ConfigError, NearfreeError
from nearfree.hardware.platforms import resolve

MOST = 20_000
"""Deployments that one question may ask about."""


def deployments(config: Config, spec: DeploymentSpec) -> list[Deployment]:
    """Return one deployment a combination of what is listed.

    What is listed twice is asked about once.

    Raises
    ------
    ConfigError
        A model, platform or backend that nothing knows, or more combinations than MOST.
    """
    decoders = [find_decoder(config.folder, name) for name in spec.models]
    platforms = [resolve(config.platforms, name) for name in spec.platforms]
    attention = [newest(config, release, attention_backend) for release in spec.attention]
    sparse = any(decoder.experts for decoder in decoders)
    moe = [newest(config, e, moe_backend) if sparse else moe_backend(e) for e in spec.moe]
    routed = tuple(product(moe, spec.routing))
    _distinct(decoders)
    kinds = sum(len(routed) if decoder.experts else 1 for decoder in decoders)
    count = kinds * len(platforms) * len(attention) * len(spec.batch) * len(spec.context)
    if count > MOST:
        raise ConfigError(
            f"{count} deployments are asked about", remedy=f"Ask about {MOST} at most at once"
        )
    asked = Override(
        dtype=spec.dtype, weights=spec.weights, activations=spec.activations, kv=spec.kv_dtype
    )
    expanded = [
        Deployment(
            decoder=decoder,
            platform=platform,
            attention=runs,
            moe=experts,
            routing=routing,
            batch=batch,
            context=context,
            precision=asked.of(uniform(decoder.dtype)),
        )
        for decoder, platform, runs in product(decoders, platforms, attention)
        for experts, routing in (routed if decoder.experts else ((None, None),))
        for batch, context in product(spec.batch, spec.context)
    ]
    return list(dict.fromkeys(expanded))


@contextmanager
def entry(config: Config, name: str) -> Iterator[None]:
    """Say of a refusal which entry of deployments.yaml it is of."""
    try:
        yield
    except ConfigError as error:
        where = f"{config.folder}/deployments.yaml: {name}"
        raise ConfigError(f"{where}: {error.what}", remedy=error.remedy) from error


def _distinct(decoders: Sequence[Decoder]) -> None:
    """Refuse two models of one name, which no answer could tell apart."""
    for one, other in combinations(dict.fromkeys(decoders), 2):
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
