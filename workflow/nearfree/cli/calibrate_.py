"""Fit the work model's constants to imported curves of some platforms, and keep them in the log.

Every other platform is out of sample. The constants are never edited by hand: the same curves and
the same version give the same ones.

`--own PLATFORM --from published` fits one number on a platform, the host's launch floor of fused
MoE layers, to the paper's boundaries; `--own PLATFORM --from STREAM` fits two factors for a family
of kernels to at most three curves a kernel. Own constants stand apart from the others and are used
where `nearfree validate --own` asks for them.
"""

import argparse
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from nearfree.log.events import ConstantsCalibrated


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
    parser.add_argument(
        "--own", metavar="PLATFORM", help="fit a platform's own constants, on top of the others"
    )
    parser.add_argument(
        "--from",
        dest="source",
        metavar="SOURCE",
        help="what --own is fitted to: `published`, or a stream of imported curves",
    )
    parser.add_argument("--offline", action="store_true", help="do without the network")


def run(args: argparse.Namespace) -> int:
    """Make sure that the constants are sealed, and print them."""
    from nearfree.config.files import Config
    from nearfree.derive.work_model.calibrate import calibrate
    from nearfree.derive.work_model.calibrate_own import calibrate_own
    from nearfree.derive.work_model.constants import recorded_constants
    from nearfree.derive.work_model.own import recorded_own
    from nearfree.errors import ConfigError
    from nearfree.hardware.platforms import resolve
    from nearfree.log.names import Layout

    if (args.own is None) != (args.source is None):
        raise ConfigError(
            "--own and --from go together",
            remedy="Give both, such as `--own h20 --from published`, or neither",
        )
    layout, config = Layout(args.results), Config(args.config)
    if args.own is not None:
        own = resolve(config.platforms, args.own)
        seal = calibrate_own(
            layout,
            config.platforms,
            own,
            source=args.source,
            epsilon=config.site.epsilon,
            offline=args.offline,
        )
        print(f"{seal.name}: sealed")
        for of in recorded_own(layout, recorded_constants(layout)).values():
            if own in of:
                _show(of[own].event.data)
        return 0
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
        _show(event.data)
    return 0


def _show(said: "ConstantsCalibrated") -> None:
    print(f"  {said.family}, {said.curves} curves: {said.selection.partition(': ')[0]}")
    for each in said.constants:
        print(f"    {each.hypothesis:12} {each.name:16} {each.value:8g} {each.unit:8} "
              f"{each.meaning}")  # fmt: skip
    print(f"    {'band':29} {said.band:8g} {'1':8} how far ln T(N)/T(baseline) may be off")


def _names(text: str) -> tuple[str, ...]:
    names = tuple(each for each in text.split(",") if each)
    if not names:
        raise argparse.ArgumentTypeError("name at least one platform")
    return names
