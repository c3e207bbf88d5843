"""`nearfree predict --engine`: the forward of a GGUF file in a real engine, on a CPU or a GPU."""

import argparse
from itertools import product
from pathlib import Path
from typing import Any

from nearfree.backends.builds import builds
from nearfree.backends.records import backends_of
from nearfree.cli.common import config_of, json_text, layout_of
from nearfree.cli.deployment_options import conditions, refuse_options, tolerance_of
from nearfree.cli.engine_options import CONTEXT, engine_name
from nearfree.cli.forecast_engine_gpu import predict_engine_on_gpus
from nearfree.cli.products import library_flags
from nearfree.decoders.config_file import config_file
from nearfree.decoders.ranks.engines import ENGINES
from nearfree.derive.granularity.engine import EngineForward
from nearfree.derive.granularity.releases import Release
from nearfree.derive.predict.answers import Answerer
from nearfree.derive.predict.engine_answers import EngineForecast, engine_forecast
from nearfree.derive.predict.forecast.expand_deployments import check_release
from nearfree.errors import ConfigError
from nearfree.gguf.header import GgufHeader, refuse_part
from nearfree.gguf.reader import read_header
from nearfree.hardware.platforms import resolve
from nearfree.models.gguf_forward import matrices_of, shape_of
from nearfree.show.text.engine_forecast import engine_json, engine_lines
from nearfree.sources.answers.ggml_cpu import NAMES, UNREAD, loaded_flags
from nearfree.sources.packages import parse_release

_ENGINE_CONDITIONS = ("batch", "context")
_REFUSED = ("positions", "accepted", "all", "largest", "ignore_memory")


def predict_engine(args: argparse.Namespace) -> int:
    """Print N_max and T(N) of a GGUF file's forward in an engine.

    Raises
    ------
    NearfreeError
        The file, engine, release or platform is unknown, or a rule of the release is missing.
    """
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


def _refuse_too_long(header: GgufHeader, context: int) -> None:
    """Raise ConfigError if a file's context is shorter than the cached positions and one more."""
    longest = header.metadata.get(f"{header.architecture}.context_length")
    if isinstance(longest, int) and context + 1 > longest:
        raise ConfigError(
            f"L + N = {context + 1} positions exceed the context of {header.file}, {longest}",
            remedy="Choose a smaller --context",
        )


def _engine(name: str) -> str:
    """Return the project's name of an engine; ConfigError unless its forward is predicted."""
    engines = backends_of("engine")
    cpu_engines = {name: backend for name, backend in engines.items() if "cpu" in backend.devices}
    engine = engine_name(name)
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
    if release is not None:
        return parse_release(f"{engine}=={release}")[1]
    pinned = builds(engine)
    prebuilt = [release for release, build in pinned.items() if build.prebuilt]
    return (prebuilt or list(pinned))[0]


def _flags(
    args: argparse.Namespace, answerer: Answerer, platform: str, engine: str, release: str
) -> tuple[frozenset[str], str]:
    """Return the CPU flags that the library is compiled for, and their origin."""
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
