"""Profile a study's kernels with Nsight Compute: FLOP, DRAM bytes and utilisation at each N."""

import argparse
from pathlib import Path

from nearfree.cli.common import positive


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's arguments."""
    parser.add_argument("platform", help="a platform of `here` with an NVIDIA GPU")
    parser.add_argument("study", help="a study of config/studies.yaml; its stream is STUDY_profile")
    parser.add_argument(
        "--take", type=positive, help="the take's number (default: that of config/takes.yaml)"
    )
    parser.add_argument(
        "--forwards", type=positive, default=1, help="forwards of each N (default: 1)"
    )
    parser.add_argument(
        "--plan",
        metavar="FILE",
        help="a plan printed by `nearfree plan`, - for standard input; config/ is not read, and "
        "only msgspec and torch are needed",
    )
    parser.add_argument(
        "--inside", metavar="FILE", type=Path, help="only run forwards; `ncu` calls this itself"
    )


def run(args: argparse.Namespace) -> int:
    """Profile, and print the seal."""
    from nearfree.cli.common import need_torch

    need_torch()
    from nearfree.measure.nsight import profile_file, record

    if args.inside:
        profile_file(args.inside)
        return 0
    from nearfree.cli.measure_ import read_plan, require_environment
    from nearfree.core.plan import MODULES_SUFFIX, PROFILE_SUFFIX, ProfilePlan
    from nearfree.errors import ConfigError
    from nearfree.log.names import Layout, check_part

    if args.plan:
        scope, take, plan = check_part(args.platform), args.take or 1, read_plan(args.plan)
    else:
        from nearfree.cli.common import here
        from nearfree.config.plans import Plans

        config, scope = here(args)
        take = args.take or config.take(scope, f"{args.study}_profile")
        plan = Plans(config, scope).measure(args.study)
    if plan.models:
        raise ConfigError(
            f"{args.study} measures a whole model, which has too many kernels to profile",
            remedy=f"Profile its isolated modules, where it has any: {args.study}{MODULES_SUFFIX}",
        )
    profiled = ProfilePlan(sweeps=plan.sweeps, environment=plan.environment, forwards=args.forwards)
    layout, study = Layout(args.results), check_part(args.study)
    require_environment(layout, scope, f"{study}{PROFILE_SUFFIX}", take, profiled)
    seal = record(layout, scope, study, take, profiled)
    events = sum(part.events for part in seal.segments)
    print(f"{seal.name}: sealed, {events} events in {len(seal.segments)} attempt(s)")
    return 0
