"""Score the predictors against published, imported or measured boundaries.

Truth is the last pass over the grid from the baseline upwards, where the baseline is the smallest
N, and the smallest N >= ceil(E / (b k)) where routing is balanced. A hit is a real-valued
prediction in [N_max, next grid N), unbounded above where N_max is the last grid N. What is refused
or undecided counts as a miss. `twin_version` is the noise ceiling: another version's curve.
"""

import argparse
import math
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nearfree.config import Config
    from nearfree.events.names import Layout
    from nearfree.theory.scores import Answering
    from nearfree.theory.truth import Truth

DATASETS = ("published", "aiconfigurator", "measured")
PREDICTORS = ("idle_compute", "principle", "principle_resolved", "work_model", "twin_version")
MODULES = ("gemm", "dense_ffn", "moe_ffn", "attention", "model")
BY = (
    *("predictor", "platform", "module", "backend", "backend_version", "in_sample"),
    *("epsilon", "dtype", "routing", "kernel"),
)
_MINIMUM_MB = 64.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's arguments."""
    data = parser.add_mutually_exclusive_group()
    data.add_argument(
        "--dataset", choices=DATASETS, default="published", help="which data (default: published)"
    )
    data.add_argument(
        "--curves", type=Path, metavar="FILE", help="a CSV file of curves, not put into the log"
    )
    parser.add_argument(
        "--epsilon",
        type=_epsilon,
        action="append",
        help="a tolerance, or `all` of the config's; repeatable (default: the config's epsilon)",
    )
    for name, choices, what in (
        ("predictor", PREDICTORS, "a predictor to score"),
        ("platform", None, "a platform to score on"),
        ("module", MODULES, "a module to score on"),
    ):
        parser.add_argument(
            f"--{name}",
            choices=choices,
            action="append",
            help=f"{what}; repeatable (default: every one)",
        )
    parser.add_argument(
        "--by",
        type=_by,
        default=("predictor", "platform", "module", "epsilon"),
        help=f"what to group by, with commas between: {', '.join(BY)} "
        "(default: predictor,platform,module,epsilon)",
    )
    parser.add_argument(
        "--minimum-mb",
        type=_size,
        help="least weights of a gemm in MB; smaller ones can stay in the cache "
        f"(default: {_MINIMUM_MB:g} for aiconfigurator, else 0)",
    )
    parser.add_argument("--offline", action="store_true", help="do without the network")
    parser.add_argument(
        "--format", choices=["table", "json"], default="table", help="how to print (default: table)"
    )


def run(args: argparse.Namespace) -> int:
    """Print the scores."""
    from nearfree.config import Config
    from nearfree.errors import EvidenceError
    from nearfree.events.names import Layout
    from nearfree.report.scores import head, table
    from nearfree.theory.evaluation import evaluate
    from nearfree.theory.scores import groups

    layout, config = Layout(args.results), Config(args.config)
    epsilons = _tolerances(args, config)
    source, known = _truth(args, layout, config, epsilons)
    known = _narrowed(args, source, known, config)
    predictors = list(dict.fromkeys(args.predictor or PREDICTORS))
    found = evaluate(known, answering(args, layout, config), epsilons, predictors)
    if found.scores.is_empty():
        raise EvidenceError(
            f"{source}: no setting of it can be scored by {', '.join(predictors)}",
            remedy="Choose other predictors; twin_version needs a second version of a curve",
        )
    rows = groups(found.scores, args.by)
    if args.format == "json":
        import msgspec

        print(msgspec.json.format(msgspec.json.encode(rows), indent=2).decode())
        return 0
    for line in (*head(source, known, found, epsilons), "", *table(rows, args.by)):
        print(line)
    return 0


def answering(args: argparse.Namespace, layout: "Layout", config: "Config") -> "Answering":
    """Return what answers users' questions, which is what is scored."""
    from nearfree.theory.answers import Answerer

    return Answerer(layout, config, offline=args.offline)


def _epsilon(text: str) -> float | None:
    """Return a tolerance, None for `all`."""
    if text == "all":
        return None
    epsilon = _number(text)
    if not 0 < epsilon < 1:
        raise argparse.ArgumentTypeError(f"{text} is not between 0 and 1, nor `all`")
    return epsilon


def _size(text: str) -> float:
    size = _number(text)
    if not 0 <= size < math.inf:
        raise argparse.ArgumentTypeError(f"{text} is no size: give a number of MB, 0 or more")
    return size


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no number") from None


def _by(text: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(text.split(",")))
    for name in names:
        if name not in BY:
            raise argparse.ArgumentTypeError(
                f"{name!r} is nothing to group by: choose from {', '.join(BY)}"
            )
    return names


def _tolerances(args: argparse.Namespace, config: "Config") -> list[float]:
    asked = args.epsilon or [config.site.epsilon]
    return sorted({*(e for e in asked if e), *(config.site.tolerances if None in asked else ())})


def _truth(
    args: argparse.Namespace, layout: "Layout", config: "Config", epsilons: list[float]
) -> "tuple[str, Truth]":
    """Return the name of the data and what is known of them."""
    from nearfree.theory import datasets

    if args.curves:
        return datasets.load_file(args.curves, config, epsilons, args.minimum_mb or 0.0)
    if args.dataset == "published":
        return datasets.load_published(layout, epsilons)
    if args.dataset == "measured":
        return datasets.load_measured(layout, config, epsilons)
    least = _MINIMUM_MB if args.minimum_mb is None else args.minimum_mb
    return datasets.load_aiconfigurator(layout, epsilons, least)


def _narrowed(args: argparse.Namespace, source: str, known: "Truth", config: "Config") -> "Truth":
    """Return the truth of the chosen platforms and modules; ConfigError if that is nothing."""
    from nearfree.theory.datasets import chosen

    aliases = {alias: name for name, each in config.platforms.items() for alias in each.aliases}
    platforms = [aliases.get(name, name) for name in args.platform or ()]
    known = chosen(source, known, "platform", platforms)
    return chosen(source, known, "module", args.module or ())
