"""What engines need beside Python packages: their prebuilt libraries, and weights."""

import argparse
from typing import TYPE_CHECKING

from nearfree.cli.common import OFFLINE, argument, command, config_of

if TYPE_CHECKING:
    from nearfree.config.files import Config
    from nearfree.core.modules.engine import EngineStudy


@command(
    "fetch",
    argument(
        "study",
        nargs="*",
        help="studies of an engine (default: those that config.yaml asks for here)",
    ),
    OFFLINE,
    argument(
        "--lock",
        action="store_true",
        help="read each build's package and headers anew, and write envs/engines.lock",
    ),
)
def run_fetch(args: argparse.Namespace) -> int:
    """Fetch what the engines of studies need, once: libraries and weights, each by its hash.

    Libraries are compared with envs/engines.lock, weights with config/weights.yaml, before they are
    kept; random weights are written and stored by the engine itself.

    Example: nearfree fetch llama_cpp_smollm2 --offline
    """
    if args.lock:
        return _write_lock()
    from nearfree.measure.engine_files import ensure_files

    config, told = config_of(args), set()
    for study in _studies(config, args.study):
        for line in ensure_files(config, study, offline=args.offline):
            if line not in told:  # studies share libraries and weights
                print(line, flush=True)
            told.add(line)
    return 0


def _studies(config: "Config", names: list[str]) -> "list[EngineStudy]":
    from nearfree.core.modules.engine import EngineStudy
    from nearfree.errors import ConfigError

    engines = {n: s for n, s in config.studies.items() if isinstance(s, EngineStudy)}
    for name in names:
        if name not in engines:
            raise ConfigError(
                f"{name!r} is no study of an engine",
                remedy=f"Choose from {', '.join(engines) or 'none'}",
            )
    asked = names or [name for scope in config.site.here for name in config.studied(scope)]
    return [study for name, study in engines.items() if name in asked]


def _write_lock() -> int:
    """Write the lock with the builds of llama.cpp that it names, as their releases are now."""
    import msgspec

    from nearfree.backends.builds import LOCK, locked
    from nearfree.log.document import alone, replace
    from nearfree.sources.engine_builds import read_build
    from nearfree.sources.fetching.cache import Cache, default_cache

    engine, cache = "llama_cpp", Cache(default_cache())
    with alone(LOCK):
        known = locked()
        known[engine] = {
            release: read_build(release, prebuilt=build.prebuilt, cache=cache)
            for release, build in known[engine].items()
        }
        replace(LOCK, msgspec.json.format(msgspec.json.encode(known), indent=1) + b"\n")
    print(f"{LOCK}: {', '.join(known[engine])}")
    return 0
