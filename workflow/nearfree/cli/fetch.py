"""`nearfree fetch`: the prebuilt libraries of engines, and weights."""

import argparse
from typing import TYPE_CHECKING

from nearfree.cli.common import OFFLINE, argument, command, config_of, flag, source_cache
from nearfree.errors import ConfigError

if TYPE_CHECKING:
    from nearfree.config.files import Config
    from nearfree.core.modules.engine import EngineStudy


@command(
    "fetch",
    argument(
        "study",
        nargs="*",
        help="studies of an engine (default: those of this machine's platforms in config.yaml)",
    ),
    OFFLINE,
    flag("--lock", "read each build's package and headers again, and write envs/engines.lock"),
)
def run_fetch(args: argparse.Namespace) -> int:
    """Fetch the libraries and weights of studies' engines once, each checked by its hash.

    Libraries are compared with envs/engines.lock and weights with config/weights.yaml before they
    are kept; the engine itself writes random weights.

    Example: nearfree fetch llama_cpp_smollm2 --offline
    """
    if args.lock:
        return _write_lock()
    from nearfree.measure.engine_files import ensure_files

    config, printed = config_of(args), set()
    for study in _studies(config, args.study):
        for line in ensure_files(config, study, offline=args.offline):
            if line not in printed:  # studies share libraries and weights
                print(line, flush=True)
            printed.add(line)
    return 0


def _studies(config: "Config", names: list[str]) -> "list[EngineStudy]":
    from nearfree.core.modules.engine import EngineStudy

    engines = {n: s for n, s in config.studies.items() if isinstance(s, EngineStudy)}
    for name in names:
        if name not in engines:
            raise ConfigError(
                f"{name!r} is not a study of an engine",
                remedy=f"Choose from {', '.join(engines) or 'none'}",
            )
    requested = names or [name for scope in config.site.here for name in config.studied(scope)]
    return [study for name, study in engines.items() if name in requested]


def _write_lock() -> int:
    """Rewrite the lock from the current packages of the builds of llama.cpp that it names."""
    import msgspec

    from nearfree.backends.builds import LOCK, locked
    from nearfree.log.document import locked_file, replace
    from nearfree.sources.engine_builds import read_build

    engine, cache = "llama_cpp", source_cache()
    with locked_file(LOCK):
        locked_builds = locked()
        locked_builds[engine] = {
            release: read_build(release, prebuilt=build.prebuilt, cache=cache)
            for release, build in locked_builds[engine].items()
        }
        replace(LOCK, msgspec.json.format(msgspec.json.encode(locked_builds), indent=1) + b"\n")
    print(f"{LOCK}: {', '.join(locked_builds[engine])}")
    return 0
