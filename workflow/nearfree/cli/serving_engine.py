"""Options of `--engine` in answers; one that serves models on GPUs is as `--moe`."""

import argparse

from nearfree.cli.common import positive
from nearfree.cli.deployment_options import refuse_options
from nearfree.errors import ConfigError

SERVING_HELP = (
    "the engine that serves the model on GPUs, vllm, sglang or trtllm, with its release as "
    "vllm==0.20.2 or by --release: the same as --moe"
)
_CPU_OPTIONS = ("threads", "no_repack", "cpu_flags")
"""Attributes of parsed arguments that apply to an engine on a CPU alone."""


def add_serving_engine(parser: argparse.ArgumentParser) -> None:
    """Add `--engine` and `--release`, for answers about GPUs only."""
    parser.add_argument("--engine", help=SERVING_HELP)
    parser.add_argument("--release", help="the release of --engine (default: the newest recorded)")


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
    refuse_options(args, ("release", *_CPU_OPTIONS), "without --engine", "name the engine")


def serving_engine(text: str) -> str | None:
    """Return the backend of MoE layers of the engine that a text names; None for other engines.

    Parameters
    ----------
    text
        Such as `vllm`, `sglang==0.5.9` or `TensorRT-LLM`.
    """
    from nearfree.backends.records import backends_of
    from nearfree.decoders.ranks.engines import ENGINES

    name = text.partition("==")[0].strip().lower().replace("_", "-")
    backends = backends_of("moe_ffn")
    return next((engine for engine in ENGINES if name in backends[engine].names), None)


def use_serving_engine(args: argparse.Namespace) -> bool:
    """Move a serving engine of `--engine` and `--release` to `--moe`; return whether it was one.

    Raises
    ------
    ConfigError
        `--moe` is given, too, or an option of engines on a CPU, or the release twice.
    """
    engine = serving_engine(args.engine) if args.engine else None
    if engine is None:
        return False
    refuse_options(args, ("moe",), "with --engine, which names the same", "leave out --engine")
    cpu_options = [name for name in _CPU_OPTIONS if hasattr(args, name)]
    where = f"on a GPU, where {engine} runs"
    refuse_options(args, cpu_options, where, "name an engine on a CPU, such as llama_cpp")
    if "==" in args.engine and args.release:
        raise ConfigError(
            f"--engine {args.engine} names a release, and --release {args.release} does, too",
            remedy="Leave one of them out",
        )
    _, *release = args.engine.split("==", 1)
    if args.release:
        release = [args.release]
    args.moe = "==".join([engine, *release])
    args.engine = args.release = None
    return True


def use_only_serving_engine(args: argparse.Namespace) -> None:
    """Move `--engine` and `--release` to `--moe`, for answers about GPUs only.

    Raises
    ------
    ConfigError
        As `use_serving_engine`, or another engine is named, or a release without an engine.
    """
    from nearfree.decoders.ranks.engines import ENGINES

    if not args.engine:
        refuse_options(args, ("release",), "without --engine", "name the engine")
    elif not use_serving_engine(args):
        raise ConfigError(
            f"{args.engine!r:.60} is no engine that serves models on GPUs here",
            remedy=f"Choose {', '.join(ENGINES)}, or `nearfree predict --engine llama_cpp` for a "
            "GGUF file on a CPU",
        )
