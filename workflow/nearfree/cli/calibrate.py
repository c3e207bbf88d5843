"""`nearfree calibrate`: constants of the work model, fitted to curves."""

import argparse
from typing import TYPE_CHECKING, Any

from nearfree.cli.common import OFFLINE, argument, command, config_of, flag, layout_of
from nearfree.cli.deployment_options import refuse_options
from nearfree.errors import ConfigError

if TYPE_CHECKING:
    from nearfree.config.files import Config
    from nearfree.log.events import ConstantsCalibrated
    from nearfree.log.names import Layout

DEFAULT_PLATFORMS = ("a100", "h100")
DEFAULT_STREAM = "aiconfigurator_core_0_12_0"
SEPARATE_OPTIONS: dict[str, tuple[str, ...]] = {
    "own": (),
    "kernels": ("stream",),
    "steps": (),
    "collectives": ("on", "stream"),
}
"""Options that each select a calibration of its own, with the other options that it reads."""


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
        help=f"platforms to calibrate on, comma-separated (default: {','.join(DEFAULT_PLATFORMS)})",
    ),
    argument("--stream", help=f"the stream of imported curves (default: {DEFAULT_STREAM})"),
    flag("--collectives", "fit only the constants of collectives"),
    flag(
        "--kernels",
        "fit constants, residuals and bands of each kernel to the curves of every platform",
    ),
    flag(
        "--steps",
        "fit the time of engines' steps outside the modules, to published steps of whole models",
    ),
    argument(
        "--module",
        type=_names,
        action="extend",
        default=[],
        help="with --kernels: modules to fit, comma-separated; recorded constants of others stay",
    ),
    argument(
        "--own", metavar="PLATFORM", help="fit a platform's own constants, beside the shared ones"
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

    `--own PLATFORM --from published` fits one constant of a platform, the host's launch floor of
    fused MoE layers, to the paper's boundaries; `--own PLATFORM --from STREAM` fits two factors per
    family of kernels to at most three curves per kernel. Own constants are stored separately and
    used only by `nearfree validate --own`.

    `--steps` fits four constants per engine to config/whole/steps.csv: the times of its kernels
    between modules, of waits at all-reduces, of its scheduler and of its requests.

    `--collectives` fits T(N) of collectives, which needs GPUs of each kind of link. `--kernels`
    fits constants per kernel, GPU and format, and stores its curves with their residuals; regimes
    R1 to R3 predict from them.

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
    _refuse_combinations(args)
    layout, config = layout_of(args), config_of(args)
    if args.steps:
        return _calibrate_steps(layout, config, offline=args.offline)
    used: dict[str, Any] = {"epsilon": config.site.epsilon, "offline": args.offline}
    if args.own is not None:
        own_platform = resolve(config.platforms, args.own)
        seal = calibrate_own(layout, config.platforms, own_platform, source=args.source, **used)
        print(f"{seal.name}: sealed")
        for by_platform in recorded_own(layout, recorded_constants(layout)).values():
            if own_platform in by_platform:
                _print_constants(by_platform[own_platform].event.data)
        return 0
    stream = args.stream or DEFAULT_STREAM
    if args.kernels:
        return _calibrate_kernels(args, layout, config, stream)
    on = tuple(
        dict.fromkeys(resolve(config.platforms, name) for name in args.on or DEFAULT_PLATFORMS)
    )
    used["collectives"] = args.collectives
    seal = calibrate(layout, config.platforms, on, stream=stream, **used)
    print(f"{seal.name}: sealed")
    for name, event in recorded_constants(layout).items():
        if (name in COLLECTIVE_FAMILIES) == args.collectives:
            _print_constants(event.data)
    return 0


def _refuse_combinations(args: argparse.Namespace) -> None:
    """Raise ConfigError for two separate calibrations, or an option that one of them ignores."""
    options = [name for name in SEPARATE_OPTIONS if getattr(args, name)]
    if len(options) > 1:
        raise ConfigError(
            f"{' and '.join(f'--{name}' for name in options)} are separate calibrations",
            remedy="Give one of them at a time",
        )
    for name in options:
        unused = [option for option in ("on", "stream") if option not in SEPARATE_OPTIONS[name]]
        refuse_options(args, unused, f"with --{name}", f"--{name}")


def _calibrate_kernels(
    args: argparse.Namespace, layout: "Layout", config: "Config", stream: str
) -> int:
    """Seal the constants, residuals and bands of each kernel, and print their numbers."""
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
    reference = recorded_reference(layout, {})
    events = [event.data for event in reference.events.values()] if reference else []
    print(f"  {len(events)} kernels, {sum(kernel.curves for kernel in events)} curves, "
          f"{sum(kernel.points for kernel in events)} points")  # fmt: skip
    for key, band in sorted(reference.bands.items()) if reference else ():
        print(f"    {key[0]}  {' '.join(filter(None, key[1:])):44} {band.band:8g}  {band.curves:6} "
              f"curves  hit {_share_text(band.hit)}  within x2 {_share_text(band.within_x2)}  "
              f"covered {_share_text(band.covered)}")  # fmt: skip
    return 0


def _share_text(share: float | None) -> str:
    return "-" if share is None else f"{share:.3f}"


def _calibrate_steps(layout: "Layout", config: "Config", *, offline: bool) -> int:
    """Seal the constants of engines' steps, and print them."""
    from nearfree.derive.engine_step.recorded import recorded_steps
    from nearfree.derive.score.calibrate_steps import calibrate_steps

    seal = calibrate_steps(layout, config, offline=offline)
    print(f"{seal.name}: sealed")
    for _, step in sorted(recorded_steps(layout).items()):
        _print_constants(step.event.data)
    return 0


def _print_constants(calibrated: "ConstantsCalibrated") -> None:
    print(
        f"  {calibrated.family}, {calibrated.curves} curves: "
        f"{calibrated.selection.partition(': ')[0]}"
    )
    for constant in calibrated.constants:
        print(
            f"    {constant.hypothesis:12} {constant.name:16} {constant.value:8g} "
            f"{constant.unit:8} {constant.meaning}"
        )
    print(f"    {'band':29} {calibrated.band:8g} {'1':8} half width of ln T(N)/T(baseline)")
