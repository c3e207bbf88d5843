"""Options that describe deployments: models, platforms, backends and conditions."""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from nearfree.cli.common import layout_of, positions, positive, tolerance
from nearfree.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nearfree.config.files import Config, DeploymentSpec
    from nearfree.config.loads import MeasuredLoads
    from nearfree.derive.predict.answers import Answerer
    from nearfree.derive.predict.forecast.deployment import Deployment

DTYPES = (
    "bfloat16", "float16", "float32", "float8",
    "float8_block", "mxfp8", "int8", "int4", "nvfp4", "mxfp4",
)  # fmt: skip
_ENGINES_WORDS = {
    "bf16": "bfloat16", "fp16": "float16", "half": "float16", "fp32": "float32",
    "fp8": "float8", "fp8_e4m3": "float8", "fp8_block": "float8_block",
}  # fmt: skip
"""What engines' options and release notes call them."""
_METHODS = ("awq", "gptq")
"""Ways to quantise that engines take for formats; most published files of them hold int4."""
ENGINE = "engine"
"""`graphs` of a deployment whose steps its own engine pads."""
CONDITIONS = (
    "attention", "moe", "moe_backend", "dense", "batch", "context", "routing", "loads", "dtype",
    "weights", "activations", "kv_dtype", "tp", "dp", "ep", "pp", "gpus", "graphs",
)  # fmt: skip
"""What options say of a model on a platform."""
MODEL = (
    "a name under config/models; else the path of a config.json, a GGUF file or a folder with one; "
    "else a Hugging Face id, ORG/NAME or ORG/NAME@REVISION, whose config files come from its local "
    "cache, or once from the hub"
)
"""What a model may be named by, in the order in which it is looked for."""
Value = TypeVar("Value")


_OF_SGLANG = "SGLang's DP attention with --tp 8 --dp 8, on 8 GPUs, is --tp 1 --dp 8"


def add_deployment(
    parser: argparse.ArgumentParser,
    *,
    many: bool = True,
    required: bool = True,
    batch: bool = True,
    contexts: bool = False,
) -> None:
    """Add the arguments that name deployments.

    Parameters
    ----------
    many
        Options take lists with commas.
    required
        `--model` and `--platform` are required.
    batch
        Add `--batch`.
    contexts
        `--context` takes a list, whether or not others do.
    """
    several = ", or several: a,b,c"
    listed = several if many else ""

    def of(kind: Callable[[str], Value]) -> Callable[[str], list[Value]]:
        return _several(kind) if many else _one(kind)

    parser.add_argument(
        "--model",
        type=of(str),
        required=required,
        help=f"{MODEL}{listed}",
    )
    parser.add_argument(
        "--platform", type=of(str), required=required, help=f"a name of platforms.yaml{listed}"
    )
    parser.add_argument(
        "--attention",
        help="package==version; without a version the newest recorded one (default: what "
        "the engine of --moe takes on the GPU, as vllm-fa3 on Hopper; of a latent vllm-mla or "
        "sglang-mla; else what has kernels for 8-bit caches, sinks and wide heads)",
    )
    parser.add_argument(
        "--moe",
        help="the same for MoE layers; its engine serves a model without any, too: "
        "vllm==0.20.2 (default: vllm, but sglang for a schedule of SGLang, where "
        "--ep is neither 1 nor tp x dp, and where its kernel for the format is read and that of "
        "vllm is not)",
    )
    parser.add_argument(
        "--moe-backend",
        metavar="NAME",
        help="the kernel of experts that vLLM's --moe-backend or SGLang's --moe-runner-backend "
        "names, in the engine's word: marlin, triton, flashinfer_trtllm (default: the engine's "
        "own choice)",
    )
    parser.add_argument(
        "--dense",
        help="the same for dense products of quantised weights, vllm-linear or torch (default: "
        "those of --moe's release where they are read, else a library's)",
    )
    if batch:
        parser.add_argument("--batch", type=of(positive), help=f"b, requests{listed}")
    parser.add_argument(
        "--context",
        type=_several(positions) if contexts else of(positions),
        help=f"L, cached positions a request{several if contexts else listed}",
    )
    parser.add_argument(
        "--routing",
        type=of(_routing),
        help=f"balanced or skewed, the two bounds, or a power law such as power_law:1.2{listed}",
    )
    parser.add_argument(
        "--loads",
        type=Path,
        metavar="FILE",
        help="loads of experts as you measured them, in the place of a routing: a .csv or .json "
        "file of expert, share (or count) and, if they differ, layer",
    )
    for option, what in (
        ("--tp", "GPUs that share each matrix and the heads"),
        ("--dp", f"groups of them that attend to requests of their own; {_OF_SGLANG}"),
        ("--ep", "groups of the tp x dp GPUs that have whole experts"),
        ("--pp", "pipeline stages that share the layers"),
    ):
        parser.add_argument(option, type=positive, help=f"{what} (default: 1)")
    parser.add_argument(
        "--gpus", type=positive, help="GPUs, tp x dp x pp; without tp, dp and pp it stands for --tp"
    )
    parser.add_argument(
        "--graphs",
        help="vllm==VERSION or sglang==VERSION, whose CUDA graphs a step is padded to, or none "
        "(default: the engine of --moe)",
    )
    for option, what in (
        ("--dtype", "element type of all"),
        ("--weights", "format of stored weights"),
        ("--activations", "format of what enters products"),
        ("--kv-dtype", "format of the KV cache"),
    ):
        parser.add_argument(
            option,
            type=_format,
            choices=DTYPES,
            help=f"{what}; also as engines write it, bf16, fp8 (default: the model's)",
        )


def _format(text: str) -> str:
    """Return a format by the name that it has here."""
    if text.lower() in _METHODS:
        raise argparse.ArgumentTypeError(
            f"{text} is a way to quantise, not a format: int4 is what most of its files hold, and "
            "a model's own files say it without this option"
        )
    return _ENGINES_WORDS.get(text.lower(), text)


def add_answer_options(parser: argparse.ArgumentParser, *, largest: bool = True) -> None:
    """Add the options of all answers: tolerance, largest N, and fetching of releases."""
    parser.add_argument(
        "--ignore-memory",
        action="store_true",
        help="exit with 0 also where a deployment does not fit in memory",
    )
    parser.add_argument(
        "--epsilon",
        type=tolerance,
        help="tolerance, between 0 and 1: by what share of T(1) a near-free forward may take "
        "longer (default: config.yaml's)",
    )
    if largest:
        parser.add_argument(
            "--largest",
            type=positive,
            default=512,
            help="the largest N, positions, that is looked at (default: 512)",
        )
    parser.add_argument(
        "--online",
        action="store_true",
        help="read a release from the package index if neither log nor cache has it",
    )


def refuse_options(
    args: argparse.Namespace, names: "Sequence[str]", where: str, remedy: str
) -> None:
    """Raise ConfigError with all of these options that are given: what is asked has no use of them.

    Parameters
    ----------
    names
        The options as the parsed arguments name them, without a default.
    where, remedy
        What has no use of them, and what to do besides leaving them out.
    """
    given = [f"--{name.replace('_', '-')}" for name in names if getattr(args, name) is not None]
    if given:
        options = ", ".join(given)
        have = "has" if len(given) == 1 else "have"
        raise ConfigError(
            f"{options} {have} no effect {where}", remedy=f"Leave out {options}, or {remedy}"
        )


def make_answerer(
    args: argparse.Namespace, config: "Config", queries: "Sequence[Deployment]"
) -> "Answerer":
    """Return the predictors with datasheet facts, or a platform's newest probe where it has none.

    Raises
    ------
    ConfigError
        A deployment names a release whose rules are not on record and cannot be fetched, or an
        option is of no deployment.
    """
    from nearfree.derive.granularity.facts import known_facts
    from nearfree.derive.predict.answers import Answerer
    from nearfree.derive.predict.forecast.expand_deployments import check_releases

    if queries and not any(query.moe for query in queries):
        where = "on a model without experts"
        refuse_options(args, ("routing",), where, "name a model that has some")
    if queries and not any(query.dense for query in queries):
        where = "where no product beside the experts' has quantised weights on a GPU"
        refuse_options(args, ("dense",), where, "name their format with --weights")
    layout = layout_of(args)
    answerer = Answerer(layout, config, offline=not args.online)
    check_releases(config, answerer, queries)
    return answerer.on(known_facts(layout, config.platforms))


def fit(args: argparse.Namespace, queries: "Sequence[Deployment]") -> bool:
    """Return whether each model fits on each platform under each condition named in the options.

    It does where memory is not known or to be ignored. Of batch sizes and contexts that no option
    names, so that a grid or list stands for them, one that fits is enough.
    """
    fits: dict[tuple[object, ...], bool] = {}
    for query in queries:
        batch = query.batch if getattr(args, "batch", None) else None
        context = query.context if args.context else None
        named = query.decoder.name, query.platform, batch, context
        holds = query.memory is None or query.memory.fits is not False
        fits[named] = fits.get(named, False) or holds
    return bool(args.ignore_memory) or all(fits.values())


def tolerance_of(args: argparse.Namespace, config: "Config") -> float:
    """Return the tolerance of `--epsilon`, or the config's."""
    return float(args.epsilon or config.site.epsilon)


def make_spec(
    args: argparse.Namespace,
    *,
    batch: "Sequence[int]" = (1,),
    context: "Sequence[int]" = (4096,),
    routing: "Sequence[str]" = ("balanced",),
    moe: str | None = None,
) -> "DeploymentSpec":
    """Return the deployments that the options describe; the other arguments are their defaults.

    Raises
    ------
    ConfigError
        A model is none that is known, or its id's config files are not to be had.
    """
    from nearfree.config.files import DeploymentSpec
    from nearfree.hub.asked import asked_model

    return DeploymentSpec(
        models=tuple(asked_model(args.config, each) for each in args.model),
        platforms=tuple(args.platform),
        attention=(args.attention,) if args.attention else (),
        moe=tuple(filter(None, (args.moe or moe,))),
        moe_backend=args.moe_backend,
        dense=args.dense,
        batch=tuple(args.batch or batch),
        context=tuple(args.context or context),
        routing=tuple(args.routing or routing),
        dtype=args.dtype,
        weights=args.weights,
        activations=args.activations,
        kv_dtype=args.kv_dtype,
        tp=args.tp or 1,
        dp=args.dp or 1,
        ep=args.ep or 1,
        pp=args.pp or 1,
        gpus=args.gpus,
        graphs=args.graphs or ENGINE,
    )


def _several(kind: Callable[[str], Value]) -> Callable[[str], list[Value]]:
    def listed(text: str) -> list[Value]:
        parts = [part.strip() for part in text.split(",")]
        if not all(parts):
            raise argparse.ArgumentTypeError(f"{text!r:.200} has an empty entry")
        try:
            return [kind(part) for part in parts]
        except ValueError:
            raise argparse.ArgumentTypeError(
                f"{text!r:.200} is no list of whole numbers with commas between"
            ) from None

    return listed


def _one(kind: Callable[[str], Value]) -> Callable[[str], list[Value]]:
    def single(text: str) -> list[Value]:
        if not text.strip():
            raise argparse.ArgumentTypeError("it is empty")
        return [kind(text)]

    single.__name__ = kind.__name__
    return single


def _routing(text: str) -> str:
    from nearfree.core.modules.routing import named_routing

    try:
        return named_routing(text)
    except ConfigError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def loads_of(args: argparse.Namespace) -> "MeasuredLoads | None":
    """Return the measured loads of `--loads`, None where it is not given.

    Raises
    ------
    ConfigError
        The file is odd, or a routing is named, too.
    """
    from nearfree.config.loads import read_loads

    if args.loads is None:
        return None
    if args.routing:
        raise ConfigError(
            "--loads and --routing both say how tokens fall on experts", remedy="Leave out one"
        )
    return read_loads(args.loads)
