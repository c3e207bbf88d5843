"""Put on record what is predicted of a model's study, before it is measured.

The sum of its modules' times and the paper's minimum rule come from the modules measured apart
(the stream STUDY_modules); the paper's law from the blocks and tiles that those runs counted.
"""

import argparse

from nearfree.cli.common import positive


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's arguments."""
    parser.add_argument("platform", help="a platform of `here`")
    parser.add_argument("study", help="a study of a model; the stream of its events STUDY_foretold")
    parser.add_argument(
        "--take", type=positive, help="which take (default: as config/takes.yaml says)"
    )


def run(args: argparse.Namespace) -> int:
    """Record, and print what is predicted at the reported tolerance."""
    from nearfree.cli.common import here
    from nearfree.config.plans import Plans
    from nearfree.core.plan import FORETOLD
    from nearfree.log.events import PredictionRecorded
    from nearfree.log.evidence import read_take
    from nearfree.log.names import Layout
    from nearfree.log.take import take_name
    from nearfree.preregister.record import foretell

    config, scope = here(args)
    stream = f"{args.study.removesuffix(FORETOLD)}{FORETOLD}"
    take = args.take or config.take(scope, stream)
    plan = Plans(config, scope).foretell(stream)
    layout = Layout(args.results)
    seal = foretell(layout, scope, stream, take, plan)
    events = sum(part.events for part in seal.segments)
    print(f"{seal.name}: sealed, {events} events in {len(seal.segments)} attempt(s)")
    for event in read_take(layout, take_name(scope, stream, take, plan)).of(PredictionRecorded):
        said = event.data
        if said.epsilon == config.site.epsilon:
            where = f"L = {said.setting.context}, b = {said.setting.batch}"
            if said.setting.routing:
                where += f", {said.setting.routing}, k = {said.setting.top_k}"
            value = said.refusal or f"{said.n_max:.0f} [{said.low:.0f}, {said.high:.0f}], " + (
                said.limiting_module or ""
            )
            name = said.predictor if said.basis is None else f"{said.predictor} ({said.basis})"
            print(f"  {where}: {name}: {value}")
    return 0
