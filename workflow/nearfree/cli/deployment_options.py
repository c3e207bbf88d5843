"""Options that describe deployments: models, platforms, backends and conditions."""

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from nearfree.cli.common import layout_of, positions, positive, refuse_leading_zero, tolerance
from nearfree.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from nearfree.config.files import Config, DeploymentSpec
    from nearfree.config.loads import MeasuredLoads
    from nearfree.derive.predict.answers import Answerer
    from nearfree.derive.predict.forecast.deployment import Deployment

FORMAT_ALIASES = {
    "bf16": "bfloat16", "fp16": "float16", "half": "float16", "fp32": "float32",
    "fp8": "float8", "fp8_e4m3": "float8", "fp8_block": "float8_block",
}  # fmt: skip
"""Formats by the names of engines' options and release notes."""
QUANTISATION_METHODS = ("awq", "gptq")
"""Quantisation methods that engines' options list beside formats; most of their files hold int4."""
LARGEST = 512
"""The default of `--largest`."""
ENGINE_GRAPHS = "engine"
"""The value of `graphs` for which a deployment's own engine pads its steps."""
_CONDITIONS = (
    "attention", "moe", "moe_backend", "dense", "batch", "context", "routing", "loads", "dtype",
    "weights", "activations", "kv_dtype", "gpus", "graphs",
)  # fmt: skip
MODEL = (
    "a name under config/models; else the path of a config.json, a GGUF file or a folder with one; "
    "else a Hugging Face id, ORG/NAME or ORG/NAME@REVISION, whose config files are read from its "
    "local cache, or fetched once from the hub"
)
"""The names of a model, in the order in which they are looked up."""
Value = TypeVar("Value")


def conditions() -> tuple[str, ...]:
    """Return the options that describe how a model is deployed on a platform."""
    from nearfree.core.parallel import DEGREES

    return *_CONDITIONS, *DEGREES


GRID = "; a grid for surfaces and --positions"
BOTH = "; surfaces: both bounds"
SGLANG_DP_NOTE = "SGLang's DP attention with --tp 8 --dp 8 on 8 GPUs is --tp 1 --dp 8 here"
_DEGREE_NOTES = {"dp": f"; {SGLANG_DP_NOTE}", "ep": "; it divides tp x dp"}
"""What the options of degrees of parallelism say besides the meaning of their field."""


def add_deployment(
    parser: argparse.ArgumentParser, *, many: bool = True, required: bool = True
) -> None:
    """Add the arguments that name deployments.

    Parameters
    ----------
    many
        Whether options take comma-separated lists. If not, only `--context` does, and there is no
        `--batch`.
    required
        Whether `--model` and `--platform` are required.
    """
    from nearfree.core.parallel import KINDS
    from nearfree.core.precision import FORMATS
    from nearfree.core.setting import FIELDS

    list_hint = ", or several: a,b,c"
    hint = list_hint if many else ""

    def option_type(element_type: Callable[[str], Value]) -> Callable[[str], list[Value]]:
        return _several(element_type) if many else _one(element_type)

    for option, kind, meaning in (
        ("--model", str, MODEL),
        ("--platform", _platform, "a name of platforms.yaml"),
    ):
        parser.add_argument(
            option, type=option_type(kind), required=required, help=f"{meaning}{hint}"
        )
    parser.add_argument(
        "--attention",
        help="the attention backend, package==version; without a version the newest recorded one "
        "(default: the choice of --moe's engine on this GPU, such as vllm-fa3 on Hopper; for "
        "latent attention vllm-mla or sglang-mla; for 8-bit caches, sinks and wide heads a backend "
        "that has such kernels)",
    )
    parser.add_argument(
        "--moe",
        help="the backend of MoE layers, such as vllm==0.20.2; its engine serves models without "
        "experts, too (default: vllm; sglang for a schedule of SGLang, where --ep is neither 1 nor "
        "tp x dp, and where only SGLang's kernel for the format is known)",
    )
    parser.add_argument(
        "--moe-backend",
        metavar="NAME",
        help="the experts' kernel, as a value of vLLM's --moe-backend or SGLang's "
        "--moe-runner-backend: marlin, triton, flashinfer_trtllm (default: the engine's choice)",
    )
    parser.add_argument(
        "--dense",
        help="the backend of dense products with quantised weights, vllm-linear or torch (default: "
        "that of --moe's release where its rules are known, else a library)",
    )
    if many:
        parser.add_argument(
            "--batch", type=option_type(positive), help=f"b, requests{hint} (default: 1{GRID})"
        )
    parser.add_argument(
        "--context",
        type=_several(positions),
        help=f"L, cached positions per request{list_hint} (default: 4096{GRID if many else ''})",
    )
    parser.add_argument(
        "--routing",
        type=option_type(_routing),
        help=f"balanced or skewed, the two bounds, or a power law such as power_law:1.2{hint} "
        f"(default: balanced{BOTH if many else ''})",
    )
    parser.add_argument(
        "--loads",
        type=Path,
        metavar="FILE",
        help="measured loads of the experts, instead of --routing: a .csv or .json file with "
        "expert, share (or count) and, if layers differ, layer",
    )
    for name, parallelism in KINDS.items():
        meaning = f"{parallelism} parallelism: {FIELDS[name].meaning}{_DEGREE_NOTES.get(name, '')}"
        parser.add_argument(f"--{name}", type=positive, help=f"{meaning} (default: 1)")
    parser.add_argument(
        "--gpus",
        type=positive,
        help="number of GPUs, tp x dp x pp; without --tp, --dp and --pp it sets --tp",
    )
    parser.add_argument(
        "--graphs",
        help="the engine whose CUDA graphs steps are padded to, vllm==VERSION or sglang==VERSION, "
        "or none (default: the engine of --moe)",
    )
    names = f"{', '.join(FORMATS)}, or an engine's name such as bf16 or fp8"
    for option, meaning in (
        ("--dtype", f"format of weights, activations and cache: {names}"),
        ("--weights", "format of stored weights, one of those"),
        ("--activations", "format of the activations that enter products, one of those"),
        ("--kv-dtype", "format of the KV cache, one of those"),
    ):
        parser.add_argument(
            option,
            type=_format,
            choices=tuple(FORMATS),
            metavar="FORMAT",
            help=f"{meaning} (default: that of the model's files)",
        )


def _format(text: str) -> str:
    """Return the project's name of a format; argparse prints the error."""
    if text.lower() in QUANTISATION_METHODS:
        raise argparse.ArgumentTypeError(
            f"{text} is a quantisation method, not a format: most of its files hold int4, and a "
            "model's own files say their format without this option"
        )
    return FORMAT_ALIASES.get(text.lower(), text)


def add_answer_options(parser: argparse.ArgumentParser, *, largest: bool = True) -> None:
    """Add the options of all answers: tolerance, largest N, and fetching of releases."""
    parser.add_argument(
        "--ignore-memory",
        action="store_true",
        default=None,
        help="exit with 0 even if a deployment does not fit in memory",
    )
    parser.add_argument(
        "--epsilon",
        type=tolerance,
        help="tolerance, between 0 and 1: a near-free forward takes at most (1 + epsilon) T(1) "
        "(default: config.yaml's)",
    )
    if largest:
        parser.add_argument(
            "--largest",
            type=positive,
            help=f"the largest N, in positions, for which T(N) is predicted (default: {LARGEST})",
        )
    parser.add_argument(
        "--online",
        action="store_true",
        help="read a release from the package index if neither the log nor the cache has it",
    )


def refuse_options(
    args: argparse.Namespace, names: "Sequence[str]", where: str, remedy: str
) -> None:
    """Raise ConfigError if any of some options is given where it has no effect.

    Parameters
    ----------
    names
        Attributes of the parsed arguments whose default is None.
    where
        The circumstance in which they have no effect: "without --engine".
    remedy
        What to do other than leaving them out.
    """
    given = [f"--{name.replace('_', '-')}" for name in names if getattr(args, name) is not None]
    if given:
        listed = ", ".join(given)
        have = "has" if len(given) == 1 else "have"
        raise ConfigError(
            f"{listed} {have} no effect {where}", remedy=f"Leave out {listed}, or {remedy}"
        )


def make_answerer(
    args: argparse.Namespace, config: "Config", queries: "Sequence[Deployment]"
) -> "Answerer":
    """Return the predictors, with datasheet facts or else a platform's newest probe.

    Raises
    ------
    ConfigError
        A deployment names a release whose rules are not on record and cannot be fetched, or an
        option has no effect on any deployment.
    """
    from nearfree.derive.granularity.facts import platform_facts
    from nearfree.derive.predict.answers import Answerer
    from nearfree.derive.predict.forecast.expand_deployments import check_releases

    if queries and not any(query.moe for query in queries):
        where = "on a model without experts"
        refuse_options(args, ("routing",), where, "name a model with experts")
    if queries and not any(query.dense for query in queries):
        where = "where no product outside the experts has quantised weights on a GPU"
        refuse_options(args, ("dense",), where, "give a quantised format by --weights")
    layout = layout_of(args)
    answerer = Answerer(layout, config, offline=not args.online)
    check_releases(config, answerer, queries)
    return answerer.on(platform_facts(layout, config.platforms))


def fit(args: argparse.Namespace, queries: "Sequence[Deployment]") -> bool:
    """Return whether each model fits in memory under each condition of the options.

    A deployment of unknown memory counts as fitting, and with --ignore-memory all do. Where batch
    sizes or contexts are a default grid, one of them that fits is enough.
    """
    fits: dict[tuple[object, ...], bool] = {}
    for query in queries:
        batch = query.batch if getattr(args, "batch", None) else None
        context = query.context if args.context else None
        condition = query.decoder.name, query.platform, batch, context
        fits_memory = query.memory is None or query.memory.fits is not False
        fits[condition] = fits.get(condition, False) or fits_memory
    return bool(args.ignore_memory) or all(fits.values())


def tolerance_of(args: argparse.Namespace, config: "Config") -> float:
    """Return the tolerance of `--epsilon`, else the config's."""
    return float(args.epsilon or config.site.epsilon)


def make_spec(
    args: argparse.Namespace,
    *,
    batch: "Sequence[int]" = (1,),
    context: "Sequence[int]" = (4096,),
    routing: "Sequence[str]" = ("balanced",),
    moe: str | None = None,
) -> "DeploymentSpec":
    """Return the deployments that the options describe.

    Parameters
    ----------
    batch, context, routing, moe
        Defaults of the options with these names.

    Raises
    ------
    ConfigError
        A model is unknown, or the config files of its Hugging Face id cannot be fetched.
    """
    from nearfree.config.files import DeploymentSpec
    from nearfree.core.parallel import DEGREES
    from nearfree.hub.model_name import resolve_model

    return DeploymentSpec(
        models=tuple(resolve_model(args.config, model) for model in args.model),
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
        **dict[str, Any]({name: getattr(args, name) or 1 for name in DEGREES}),
        gpus=args.gpus,
        graphs=args.graphs or ENGINE_GRAPHS,
    )


def _several(element_type: Callable[[str], Value]) -> Callable[[str], list[Value]]:
    def parse_list(text: str) -> list[Value]:
        parts = [part.strip() for part in text.split(",")]
        if not all(parts):
            raise argparse.ArgumentTypeError(f"{text!r:.200} has an empty entry")
        if element_type in (positive, positions):
            refuse_leading_zero(parts)
        try:
            return [element_type(part) for part in parts]
        except ValueError:
            raise argparse.ArgumentTypeError(
                f"{text!r:.200} is not a comma-separated list of whole numbers"
            ) from None

    return parse_list


def _one(element_type: Callable[[str], Value]) -> Callable[[str], list[Value]]:
    def parse_single(text: str) -> list[Value]:
        if not text.strip():
            raise argparse.ArgumentTypeError("it is empty")
        return [element_type(text)]

    parse_single.__name__ = element_type.__name__
    return parse_single


def _platform(text: str) -> str:
    if "," in text:  # a list is split before
        raise argparse.ArgumentTypeError(f"{text!r:.200} names several, and one can be asked about")
    return text


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
        The file is not valid, or --routing is given, too.
    """
    from nearfree.config.loads import read_loads

    if args.loads is None:
        return None
    if args.routing:
        raise ConfigError(
            "--loads and --routing both say how tokens are routed to experts",
            remedy="Leave out one of them",
        )
    return read_loads(args.loads)
