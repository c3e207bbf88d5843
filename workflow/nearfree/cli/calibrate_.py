"""Fit the work model's constants to imported curves of some platforms, and keep them in the log.

Every other platform is out of sample. The constants are never edited by hand: the same curves and
the same version give the same ones.
"""

import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's arguments."""
    parser.add_argument(
        "--on",
        type=_names,
        default=("a100", "h100"),
        help="platforms to calibrate on, with commas between (default: a100,h100)",
    )
    parser.add_argument(
        "--stream",
        default="aiconfigurator_core_0_12_0",
        help="the imported curves (default: aiconfigurator_core_0_12_0)",
    )
    parser.add_argument("--offline", action="store_true", help="do without the network")


def run(args: argparse.Namespace) -> int:
    """Make sure that the constants are sealed, and print them."""
    from nearfree.config import Config
    from nearfree.events.names import Layout
    from nearfree.hardware.platforms import resolve
    from nearfree.theory.times.calibrate import calibrate
    from nearfree.theory.times.constants import recorded_constants

    layout, config = Layout(args.results), Config(args.config)
    on = tuple(dict.fromkeys(resolve(config.platforms, name) for name in args.on))
    seal = calibrate(
        layout,
        config.platforms,
        on,
        stream=args.stream,
        epsilon=config.site.epsilon,
        offline=args.offline,
    )
    print(f"{seal.name}: sealed")
    for event in recorded_constants(layout).values():
        said = event.data
        print(f"  {said.family}, {said.curves} curves: {said.selection}")
        for each in said.constants:
            print(f"    {each.hypothesis:12} {each.name:16} {each.value:8g} {each.unit:8} "
                  f"{each.meaning}")  # fmt: skip
        print(f"    {'band':29} {said.band:8g} {'1':8} how far ln T(N)/T(baseline) may be off")
    return 0


def _names(text: str) -> tuple[str, ...]:
    names = tuple(each for each in text.split(",") if each)
    if not names:
        raise argparse.ArgumentTypeError("name at least one platform")
    return names
