"""Asking for another take: the one place that writes a config file, config/takes.yaml."""

import yaml

from nearfree.config import Config
from nearfree.events.document import replace
from nearfree.events.names import Layout
from nearfree.hardware.identity import STREAM
from nearfree.plans import Plans
from nearfree.settings import FORETOLD, MODULES


def raise_takes(
    config: Config, layout: Layout, scope: str, study: str | None = None
) -> dict[str, int]:
    """Ask for the take after the newest of a platform's studies, or of one stream of it.

    Returns
    -------
    dict
        The take that is now asked for, by stream.

    Raises
    ------
    ConfigError
        The platform has no such study.
    """
    known = [stream for stream in Plans(config, scope).every() if stream != STREAM]
    if study is not None and study not in (STREAM, *known):
        config.study(scope, study)
    streams = [study] if study else known
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
