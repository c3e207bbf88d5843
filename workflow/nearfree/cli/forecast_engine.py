"""`nearfree predict --engine`: the forward of a GGUF file in a real engine, on a CPU or a GPU."""

import argparse
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nearfree.cli.common import config_of, json_text, layout_of, positive
from nearfree.cli.deployment_options import conditions, refuse_options, tolerance_of
from nearfree.cli.forecast_engine_gpu import predict_engine_on_gpus
from nearfree.cli.serving_engine import SERVING_HELP
from nearfree.errors import ConfigError

if TYPE_CHECKING:
    from nearfree.config.files import Config
    from nearfree.derive.predict.answers import Answerer
    from nearfree.derive.predict.engine_answers import EngineForecast
    from nearfree.gguf.header import GgufHeader

CONTEXT = 64
"""The default of L, which is that of the project's own curves."""
_ENGINE_OPTIONS = ("release", "threads", "no_repack", "cpu_flags")
_ENGINE_CONDITIONS = ("batch", "context")
_REFUSED = ("positions", "accepted", "all", "largest", "ignore_memory")


def add_engine_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of engines: of one on GPUs, and of one that runs a GGUF file on a CPU."""
    group = parser.add_argument_group("engines")
    group.add_argument(
        "--engine", help=f"{SERVING_HELP}; or the one that runs a GGUF file, llama_cpp"
    )
    group.add_argument(
        "--release",
        help="the engine's release (default: the newest recorded; for llama_cpp the prebuilt one "
        "of envs/engines.lock)",
    )
    group.add_argument("--threads", type=positive, help="CPU threads (default: 1)")
    group.add_argument(
        "--no-repack",
        action="store_true",
        default=None,
        help="keep the weights in the file's layout (use_extra_bufts off)",
    )
    group.add_argument(
        "--cpu-flags",
        help="instructions that the library is compiled for, such as avx2,f16c,avx512f (default: "
        "those that the library reported when it was measured there, else this machine's)",
    )


def refuse_engine_options(args: argparse.Namespace) -> None:
    """Raise ConfigError where options of engines are given without one."""
    refuse_options(args, _ENGINE_OPTIONS, "without --engine", "name the engine")


def cpus(config: "Config") -> list[str]:
    """Return the platforms that an engine's forward is predicted on."""
    return [name for name, platform in config.platforms.items() if platform.kind == "cpu"]


def predict_engine(args: argparse.Namespace) -> int:
    """Print N_max and T(N) of a GGUF file's forward in an engine.

    Raises
    ------
    NearfreeError
        The file, engine, release or platform is unknown, or a rule of the release is missing.
    """
    from nearfree.decoders.config_file import config_file
    from nearfree.derive.granularity.engine import EngineForward
    from nearfree.derive.granularity.releases import Release
    from nearfree.derive.predict.answers import Answerer
    from nearfree.derive.predict.engine_answers import engine_forecast
    from nearfree.derive.predict.forecast.expand_deployments import check_release
    from nearfree.gguf.header import refuse_part
    from nearfree.gguf.reader import read_header
    from nearfree.hardware.platforms import resolve
    from nearfree.models.gguf_forward import matrices_of, shape_of
    from nearfree.show.text.engine_forecast import engine_json, engine_lines
    from nearfree.sources.packages import parse_release

    refused = (*(name for name in conditions() if name not in _ENGINE_CONDITIONS), *_REFUSED)
    refuse_options(args, refused, f"with --engine {args.engine}", "leave out --engine")
    if args.format == "csv":
        raise ConfigError("--format csv is not written with --engine", remedy="Choose json or text")
    config = config_of(args)
    engine = _engine(args.engine)
    platforms = [resolve(config.platforms, name) for name in args.platform]
    on_gpus = [name for name in platforms if config.platforms[name].kind != "cpu"]
    if on_gpus and on_gpus != platforms:
        raise ConfigError(
            f"{engine} is predicted by other options on a CPU than on a GPU",
            remedy=f"Ask for {', '.join(on_gpus)} in a command of its own",
        )
    if on_gpus:
        release = _release(engine, args.release)
        return predict_engine_on_gpus(args, config, engine, release, on_gpus)
    epsilon = tolerance_of(args, config)
    answerer = Answerer(layout_of(args), config, offline=not args.online)
    release = _release(engine, args.release)
    check_release(config, answerer, Release(*parse_release(f"{engine}=={release}")))
    forecasts: list[tuple[dict[str, Any], EngineForecast]] = []
    for name in platforms:
        flags, flags_from = _flags(args, answerer, name, engine, release)
        curves = answerer.engines.curves(name)
        for model, batch, context in product(
            args.model, args.batch or [1], args.context or [CONTEXT]
        ):
            header = read_header(config_file(Path(model)))
            refuse_part(header)
            _refuse_too_long(header, context)
            forward = EngineForward(
                engine=engine,
                release=release,
                matrices=matrices_of(header),
                shape=shape_of(header),
                threads=args.threads or 1,
                repack=not args.no_repack,
                batch=batch,
                context=context,
                flags=flags,
            )
            query = {
                "model": model,
                "platform": name,
                "cpu_flags": sorted(flags),
                "flags_from": flags_from,
            }
            rules = answerer.engines.rules(forward)
            forecasts.append((query, engine_forecast(rules, name, curves)))
    if args.format == "json":
        print(json_text([engine_json(query, forecast, epsilon) for query, forecast in forecasts]))
    else:
        texts = ("\n".join(engine_lines(*answer, epsilon)) for answer in forecasts)
        print("\n\n".join(texts))
    return 0


def _refuse_too_long(header: "GgufHeader", context: int) -> None:
    """Raise ConfigError if a file's context is shorter than the cached positions and one more."""
    longest = header.metadata.get(f"{header.architecture}.context_length")
    if isinstance(longest, int) and context + 1 > longest:
        raise ConfigError(
            f"L + N = {context + 1} positions exceed the context of {header.file}, {longest}",
            remedy="Choose a smaller --context",
        )


def _engine(name: str) -> str:
    """Return the project's name of an engine; ConfigError unless its forward is predicted."""
    from nearfree.backends.records import backends_of
    from nearfree.decoders.ranks.engines import ENGINES

    engines = backends_of("engine")
    cpu_engines = {name: backend for name, backend in engines.items() if "cpu" in backend.devices}
    engine = name.lower().replace("-", "_").replace(".", "_")
    if engine not in cpu_engines:
        raise ConfigError(
            f"the engine {name!r:.60} is unknown",
            remedy=f"Choose {', '.join(cpu_engines)} on a CPU, or {', '.join(ENGINES)} on GPUs",
        )
    if cpu_engines[engine].rules is None:
        raise ConfigError(
            f"{engine}'s kernels are in its libraries, whose rules are not read: neither "
            "principle_resolved nor work_model can tell how many rows a pass takes",
            remedy=f"Measure it: `nearfree measure cpu --engine {engine} --model FILE.gguf`",
        )
    return engine


def _release(engine: str, release: str | None) -> str:
    """Return the release of --release, else the first prebuilt one that is pinned."""
    from nearfree.backends.builds import builds
    from nearfree.sources.packages import parse_release

    if release is not None:
        return parse_release(f"{engine}=={release}")[1]
    pinned = builds(engine)
    prebuilt = [release for release, build in pinned.items() if build.prebuilt]
    return (prebuilt or list(pinned))[0]


def _flags(
    args: argparse.Namespace, answerer: "Answerer", platform: str, engine: str, release: str
) -> tuple[frozenset[str], str]:
    """Return the CPU flags that the library is compiled for, and their origin."""
    from nearfree.cli.products import library_flags
    from nearfree.derive.granularity.releases import Release
    from nearfree.sources.answers.ggml_cpu import NAMES, UNREAD, loaded_flags
    from nearfree.sources.packages import parse_release

    extraction = answerer.resolver.extraction(Release(*parse_release(f"{engine}=={release}")))
    if args.cpu_flags is None:
        loaded = [
            forward.loaded.data
            for forward in answerer.engines.forwards(platform).values()
            if (forward.setting.backend, forward.setting.release) == (engine, release)
        ]
        if loaded:
            flags = loaded_flags(extraction.by_name(), loaded[-1].system_info)
            return flags & (NAMES | UNREAD), "as the library reported when it was measured"
    flags, variant, _ = library_flags(args, extraction)
    origin = "as given" if args.cpu_flags is not None else "this machine's"
    return flags & (NAMES | UNREAD), origin if variant is None else f"the variant {variant.name}"
