"""`nearfree predict --engine`: the forward of a GGUF file in a real engine on a CPU."""

import argparse
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nearfree.cli.common import config_of, json_text, layout_of, positive
from nearfree.cli.deployment_options import CONDITIONS, refuse_options, tolerance_of
from nearfree.errors import ConfigError

if TYPE_CHECKING:
    from nearfree.derive.predict.answers import Answerer
    from nearfree.derive.predict.engine_forecast import EngineForecast
    from nearfree.gguf.header import GgufHeader
    from nearfree.sources.extraction import Extraction

CONTEXT = 64
"""L where none is given: that of the project's own curves."""
_OPTIONS = ("release", "threads", "no_repack", "cpu_flags")
_OF_ENGINES = ("batch", "context")
_NO_USE = (*(name for name in CONDITIONS if name not in _OF_ENGINES), "positions", "accepted")


def add_engine_options(parser: argparse.ArgumentParser) -> None:
    """Add what says that a real engine runs a GGUF file on a CPU, and how."""
    group = parser.add_argument_group("a real engine on a CPU")
    group.add_argument(
        "--engine", help="the engine that runs a GGUF file on a CPU: llama_cpp, or llama.cpp"
    )
    group.add_argument(
        "--release", help="its release (default: the prebuilt one of envs/engines.lock)"
    )
    group.add_argument("--threads", type=positive, help="threads of a forward (default: 1)")
    group.add_argument(
        "--no-repack",
        action="store_true",
        default=None,
        help="weights stay as the file has them (use_extra_bufts off)",
    )
    group.add_argument(
        "--cpu-flags",
        help="instructions that the library is compiled for, such as avx2,f16c,avx512f (default: "
        "what the library told when its release was measured there, else this machine's)",
    )


def refuse_engine_options(args: argparse.Namespace) -> None:
    """Raise ConfigError where options of engines are given without one."""
    refuse_options(args, _OPTIONS, "without --engine", "name the engine")


def predict_engine(args: argparse.Namespace) -> int:
    """Print how many positions of a file's forward are near-free in an engine, and its T(N).

    Raises
    ------
    NearfreeError
        There is no such file, engine, release or CPU; or a rule of it is missing.
    """
    from nearfree.decoders.config_file import config_file
    from nearfree.derive.granularity.engine import EngineForward
    from nearfree.derive.granularity.releases import Release
    from nearfree.derive.predict.answers import Answerer
    from nearfree.derive.predict.engine_forecast import engine_forecast
    from nearfree.derive.predict.forecast.expand_deployments import check_release
    from nearfree.gguf.header import refuse_part
    from nearfree.gguf.reader import read_header
    from nearfree.hardware.platforms import resolve
    from nearfree.models.gguf_forward import matrices_of, shape_of
    from nearfree.sources.packages import parse_release

    refuse_options(args, _NO_USE, "with --engine", "ask without an engine")
    if args.format == "csv":
        raise ConfigError("--format csv is not written with --engine", remedy="Choose json or text")
    config = config_of(args)
    engine = _engine(args.engine)
    platforms = [resolve(config.platforms, name) for name in args.platform]
    for name in platforms:
        if config.platforms[name].kind != "cpu":
            raise ConfigError(
                f"{engine} is predicted on a CPU, and {name} is none",
                remedy="Choose a platform of the kind cpu, or leave out --engine",
            )
    epsilon = tolerance_of(args, config)
    answerer = Answerer(layout_of(args), config, offline=not args.online)
    release = _release(engine, args.release)
    check_release(config, answerer, Release(*parse_release(f"{engine}=={release}")))
    told: list[tuple[dict[str, Any], EngineForecast]] = []
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
            about = {
                "model": model,
                "platform": name,
                "cpu_flags": sorted(flags),
                "flags_from": flags_from,
            }
            rules = answerer.engines.rules(forward)
            told.append((about, engine_forecast(rules, name, curves)))
    _print(args, told, epsilon)
    return 0


def _print(
    args: argparse.Namespace, told: "list[tuple[dict[str, Any], EngineForecast]]", epsilon: float
) -> None:
    from nearfree.show.text.engine_forecast import engine_json, engine_lines

    if args.format == "json":
        print(json_text([engine_json(about, said, epsilon) for about, said in told]))
        return
    print("\n\n".join("\n".join(engine_lines(about, said, epsilon)) for about, said in told))


def _refuse_too_long(header: "GgufHeader", context: int) -> None:
    """Raise ConfigError where a file's context does not hold the cached positions and one more."""
    longest = header.metadata.get(f"{header.architecture}.context_length")
    if isinstance(longest, int) and context + 1 > longest:
        raise ConfigError(
            f"L + N = {context + 1} positions are more than {header.file}'s {longest}",
            remedy="Choose a smaller --context",
        )


def _engine(name: str) -> str:
    """Return an engine as it is written here; ConfigError unless its forward is known."""
    from nearfree.backends.records import running

    engines = running("engine")
    known = {name: each for name, each in engines.items() if "cpu" in each.devices}
    plain = name.lower().replace("-", "_").replace(".", "_")
    if plain in engines and plain not in known:
        raise ConfigError(
            f"--engine is of a real engine on a CPU, and {plain} runs on a GPU",
            remedy="Leave it out: T(N) is of vLLM's kernels, or those that --moe, --attention, "
            "--dense and --graphs name",
        )
    if plain not in known:
        raise ConfigError(
            f"no forward of the engine {name!r} is known", remedy=f"Choose {', '.join(known)}"
        )
    if known[plain].rules is None:
        raise ConfigError(
            f"{plain}'s kernels are in its libraries, and no rules of them are read: neither "
            "principle_resolved nor work_model says how many rows a pass of them takes",
            remedy=f"Measure it: `nearfree measure cpu --engine {plain} --model FILE.gguf`",
        )
    return plain


def _release(engine: str, named: str | None) -> str:
    """Return the release that is asked about: of those that are pinned, the first prebuilt one."""
    from nearfree.backends.builds import builds
    from nearfree.sources.packages import parse_release

    if named is not None:
        return parse_release(f"{engine}=={named}")[1]
    known = builds(engine)
    prebuilt = [release for release, build in known.items() if build.prebuilt]
    return (prebuilt or list(known))[0]


def _flags(
    args: argparse.Namespace, answerer: "Answerer", platform: str, engine: str, release: str
) -> tuple[frozenset[str], str]:
    """Return what the library is compiled for, and who says so."""
    from nearfree.derive.granularity.releases import Release
    from nearfree.sources.answers.ggml_cpu import NAMES, UNREAD, told_flags
    from nearfree.sources.packages import parse_release

    extraction = answerer.extraction(Release(*parse_release(f"{engine}=={release}")))
    if args.cpu_flags is None:
        loaded = [
            each.loaded.data
            for each in answerer.engines.forwards(platform).values()
            if (each.setting.backend, each.setting.release) == (engine, release)
        ]
        if loaded:
            flags = told_flags(extraction.by_name(), loaded[-1].system_info)
            return flags & (NAMES | UNREAD), "as the library told when it was measured"
    return _named_flags(args, extraction)


def _named_flags(args: argparse.Namespace, extraction: "Extraction") -> tuple[frozenset[str], str]:
    from nearfree.cli.products import flags_of
    from nearfree.sources.answers.ggml_cpu import NAMES, UNREAD

    flags, variant, _ = flags_of(args, extraction)
    what = "as given" if args.cpu_flags is not None else "this machine's"
    return flags & (NAMES | UNREAD), what if variant is None else f"the variant {variant.name}"
