"""Asking for another take: the one place that writes a config file, config/takes.yaml."""

import yaml

from nearfree.config.files import Config
from nearfree.config.plans import Plans
from nearfree.core.plan import FORETOLD, MODULES
from nearfree.errors import ConfigError
from nearfree.hardware.identity import STREAM
from nearfree.log.document import replace
from nearfree.log.names import Layout


def raise_takes(
    config: Config,
    layout: Layout,
    scope: str,
    study: str | None = None,
    backend: str | None = None,
) -> dict[str, int]:
    """Ask for the take after the newest of a platform's studies, of one stream, or of a backend's.

    Returns
    -------
    dict
        The take that is now asked for, by stream.

    Raises
    ------
    ConfigError
        The platform has no such study, or none on that backend.
    """
    known = [stream for stream in Plans(config, scope).every() if stream != STREAM]
    if study is not None and study not in (STREAM, *known):
        config.study(scope, study)
    streams = [study] if study else known
    if backend is not None:
        streams = [name for name in streams if backend in _backends(config, name)]
        if not streams:
            raise ConfigError(
                f"no study of {scope} that was named runs on {backend!r}",
                remedy=f"Backends there: {', '.join(_every_backend(config, scope)) or 'none'}",
            )
    if study and study.endswith(MODULES):  # what is foretold rests on them
        streams.append(f"{study.removesuffix(MODULES)}{FORETOLD}")
    takes = {name: dict(by_stream) for name, by_stream in config.takes.items()}
    raised = {}
    for stream in streams:
        sealed = [take.take for take in layout.takes(scope) if take.stream == stream]
        raised[stream] = max([config.take(scope, stream), *sealed]) + 1
    takes[scope] = {**takes.get(scope, {}), **raised}
    text = "# Which take is asked for; written by `nearfree retake`.\n" + yaml.safe_dump(takes)
    replace(config.folder / "takes.yaml", text.encode())
    return raised


def _backends(config: Config, stream: str) -> set[str]:
    study = stream.removesuffix(MODULES).removesuffix(FORETOLD)
    return config.backends_of(study) if study in config.studies else set()


def _every_backend(config: Config, scope: str) -> list[str]:
    return sorted({each for name in config.studied(scope) for each in config.backends_of(name)})
