"""Constants of the work model."""

import argparse
from typing import TYPE_CHECKING, Any

from nearfree.cli.common import OFFLINE, argument, command, config_of, layout_of
from nearfree.cli.deployment_options import refuse_options
from nearfree.errors import ConfigError

if TYPE_CHECKING:
    from nearfree.config.files import Config
    from nearfree.log.events import ConstantsCalibrated
    from nearfree.log.names import Layout

_ON = ("a100", "h100")
_STREAM = "aiconfigurator_core_0_12_0"
_APART: dict[str, tuple[str, ...]] = {
    "own": (),
    "kernels": ("stream",),
    "steps": (),
    "collectives": ("on", "stream"),
}
"""What is calibrated by itself, by its option, and what else each has a use of."""


def _names(text: str) -> tuple[str, ...]:
    names = tuple(name for name in text.split(",") if name)
    if not names:
        raise argparse.ArgumentTypeError("name at least one platform")
    return names


@command(
    "calibrate",
    argument(
        "--on",
        type=_names,
        help=f"platforms to calibrate on, with commas between (default: {','.join(_ON)})",
    ),
    argument(
        "--stream",
        help=f"the imported curves (default: {_STREAM})",
    ),
    argument(
        "--collectives",
        action="store_true",
        help="fit the constants of collectives, instead of all others",
    ),
    argument(
        "--kernels",
        action="store_true",
        help="keep what every platform's curves say of each kernel: constants, residuals, bands",
    ),
    argument(
        "--steps",
        action="store_true",
        help="fit what engines' steps take besides modules to published steps of whole models",
    ),
    argument(
        "--module",
        type=_names,
        action="extend",
        default=[],
        help="with --kernels: modules, with commas between; of others what is on record stays",
    ),
    argument(
        "--own", metavar="PLATFORM", help="fit a platform's own constants, on top of the others"
    ),
    argument(
        "--from",
        dest="source",
        metavar="SOURCE",
        help="data for --own: `published`, or a stream of imported curves",
    ),
    OFFLINE,
)
def run_calibrate(args: argparse.Namespace) -> int:
    """Fit the work model's constants to imported curves of some platforms, and record them.

    Every other platform is out of sample. The constants are never edited by hand: the same curves
    and the same version give the same constants.

    `--own PLATFORM --from published` fits one number on a platform, the host's launch floor of
    fused MoE layers, to the paper's boundaries; `--own PLATFORM --from STREAM` fits two factors for
    a family of kernels to at most three curves a kernel. Own constants are kept separately and used
    only by `nearfree validate --own`.

    `--steps` fits three constants an engine to config/whole/steps.csv: what its kernels
    between modules, its scheduler and its requests take.

    `--collectives` fits T(N) of collectives instead, which needs GPUs of each kind of link.
    `--kernels` fits constants of each kernel on each GPU in each format, and keeps its curves with
    what they miss of the form: what is known of a GPU is answered by it (regimes R1 to R3).

    Example: nearfree calibrate --on a100,h100
    """
    from nearfree.derive.work_model.calibrate import calibrate, calibrate_own
    from nearfree.derive.work_model.collective import COLLECTIVE_FAMILIES
    from nearfree.derive.work_model.constants import recorded_constants
    from nearfree.derive.work_model.own import recorded_own
    from nearfree.hardware.platforms import resolve

    if args.module and not args.kernels:
        raise ConfigError(
            "--module goes with --kernels", remedy="Add --kernels, or leave --module out"
        )
    if (args.own is None) != (args.source is None):
        raise ConfigError(
            "--own and --from go together",
            remedy="Give both, such as `--own h20 --from published`, or neither",
        )
    _refuse_together(args)
    layout, config = layout_of(args), config_of(args)
    if args.steps:
        return _steps(layout, config, offline=args.offline)
    used: dict[str, Any] = {"epsilon": config.site.epsilon, "offline": args.offline}
    if args.own is not None:
        own_platform = resolve(config.platforms, args.own)
        seal = calibrate_own(layout, config.platforms, own_platform, source=args.source, **used)
        print(f"{seal.name}: sealed")
        for by_platform in recorded_own(layout, recorded_constants(layout)).values():
            if own_platform in by_platform:
                _show(by_platform[own_platform].event.data)
        return 0
    stream = args.stream or _STREAM
    if args.kernels:
        return _kernels(args, layout, config, stream)
    on = tuple(dict.fromkeys(resolve(config.platforms, name) for name in args.on or _ON))
    used["collectives"] = args.collectives
    seal = calibrate(layout, config.platforms, on, stream=stream, **used)
    print(f"{seal.name}: sealed")
    for name, event in recorded_constants(layout).items():
        if (name in COLLECTIVE_FAMILIES) == args.collectives:
            _show(event.data)
    return 0


def _refuse_together(args: argparse.Namespace) -> None:
    """Raise ConfigError for two that are calibrated apart, or an option that one has no use of."""
    given = {name: getattr(args, name) for name in _APART}
    asked = [name for name, value in given.items() if value]
    if len(asked) > 1:
        raise ConfigError(
            f"{' and '.join(f'--{name}' for name in asked)} are calibrated each by itself",
            remedy="Ask for one at a time",
        )
    for name in asked:
        odd = [each for each in ("on", "stream") if each not in _APART[name]]
        refuse_options(args, odd, f"with --{name}", f"--{name}")


def _kernels(args: argparse.Namespace, layout: "Layout", config: "Config", stream: str) -> int:
    """Seal what curves say of each kernel, and say how much that is."""
    from nearfree.derive.reference.calibrate import calibrate_kernels
    from nearfree.derive.reference.record import recorded_reference

    seal = calibrate_kernels(
        layout,
        config.platforms,
        stream=stream,
        epsilon=config.site.epsilon,
        modules=tuple(dict.fromkeys(args.module)),
        offline=args.offline,
    )
    print(f"{seal.name}: sealed")
    known = recorded_reference(layout, {})
    events = [event.data for event in known.events.values()] if known else []
    print(f"  {len(events)} kernels, {sum(each.curves for each in events)} curves, "
          f"{sum(each.points for each in events)} points")  # fmt: skip
    for key, band in sorted(known.bands.items()) if known else ():
        print(f"    {key[0]}  {' '.join(filter(None, key[1:])):44} {band.band:8g}  {band.curves:6} "
              f"curves  hit {_told(band.hit)}  within x2 {_told(band.within_x2)}  "
              f"covered {_told(band.covered)}")  # fmt: skip
    return 0


def _told(share: float | None) -> str:
    return "-" if share is None else f"{share:.3f}"


def _steps(layout: "Layout", config: "Config", *, offline: bool) -> int:
    """Seal the constants of engines' steps, and print them."""
    from nearfree.derive.engine_step.recorded import recorded_steps
    from nearfree.derive.score.calibrate_steps import calibrate_steps

    seal = calibrate_steps(layout, config, offline=offline)
    print(f"{seal.name}: sealed")
    for _, step in sorted(recorded_steps(layout).items()):
        _show(step.event.data)
    return 0


def _show(calibrated: "ConstantsCalibrated") -> None:
    print(
        f"  {calibrated.family}, {calibrated.curves} curves: "
        f"{calibrated.selection.partition(': ')[0]}"
    )
    for constant in calibrated.constants:
        print(
            f"    {constant.hypothesis:12} {constant.name:16} {constant.value:8g} "
            f"{constant.unit:8} {constant.meaning}"
        )
    print(f"    {'band':29} {calibrated.band:8g} {'1':8} how far ln T(N)/T(baseline) may be off")
