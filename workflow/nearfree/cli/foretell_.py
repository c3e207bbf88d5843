"""Record the predictions for a model's study before it is measured.

The sum of its modules' times and the paper's minimum rule come from the isolated modules (the
stream STUDY_modules); the paper's law from the blocks and tiles that those runs counted.
"""

import argparse

from nearfree.cli.common import positive


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's arguments."""
    parser.add_argument("platform", help="a platform of `here`")
    parser.add_argument("study", help="a study of a model; the stream of its events STUDY_foretold")
    parser.add_argument(
        "--take", type=positive, help="the take's number (default: that of config/takes.yaml)"
    )


def run(args: argparse.Namespace) -> int:
    """Record, and print the predictions at the headline tolerance."""
    from msgspec import structs

    from nearfree.cli.common import here
    from nearfree.config.plans import Plans
    from nearfree.core.label import AXES, label, ordered
    from nearfree.core.plan import FORETOLD_SUFFIX
    from nearfree.log.events import PredictionRecorded
    from nearfree.log.evidence import read_take
    from nearfree.log.names import Layout
    from nearfree.log.take import take_name
    from nearfree.preregister.record import foretell

    axes = ordered(AXES, "context", "batch", "routing")
    config, scope = here(args)
    stream = f"{args.study.removesuffix(FORETOLD_SUFFIX)}{FORETOLD_SUFFIX}"
    take = args.take or config.take(scope, stream)
    plan = Plans(config, scope).foretell(stream)
    layout = Layout(args.results)
    seal = foretell(layout, scope, stream, take, plan)
    events = sum(part.events for part in seal.segments)
    print(f"{seal.name}: sealed, {events} events in {len(seal.segments)} attempt(s)")
    for event in read_take(layout, take_name(scope, stream, take, plan)).of(PredictionRecorded):
        prediction = event.data
        if prediction.epsilon == config.site.epsilon:
            where = label(structs.asdict(prediction.setting), axes)
            value = (
                prediction.refusal
                or f"{prediction.n_max:.0f} [{prediction.low:.0f}, {prediction.high:.0f}], "
                + (prediction.limiting_module or "")
            )
            name = (
                prediction.predictor
                if prediction.basis is None
                else f"{prediction.predictor} ({prediction.basis})"
            )
            print(f"  {where}: {name}: {value}")
    return 0
