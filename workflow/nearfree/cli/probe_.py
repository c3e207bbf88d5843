"""Probe this machine: phi by dtype, beta by two methods, rho from each."""

import argparse

from nearfree.cli.common import positive


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's arguments."""
    parser.add_argument("platform", help="the platform that this machine is, such as cpu")
    parser.add_argument(
        "--take", type=positive, help="the take's number (default: that of config/takes.yaml)"
    )


def run(args: argparse.Namespace) -> int:
    """Run and seal the probe unless it is sealed, and print its values."""
    from nearfree.cli.common import here
    from nearfree.config.plans import Plans
    from nearfree.hardware.identity import STREAM, require_probe
    from nearfree.log.names import Layout
    from nearfree.units import balance_flop_per_byte

    config, scope = here(args)
    layout, plan = Layout(args.results), Plans(config, scope).probe()
    take, curves = args.take or config.take(scope, STREAM), config.curves(scope)
    if curves:
        from nearfree.hardware.simulated import read_machine, simulate_probe

        seal = simulate_probe(layout, scope, take, plan, read_machine(curves, scope))
    else:
        from nearfree.cli.common import need_torch

        need_torch()
        from nearfree.hardware.platforms import driver_names
        from nearfree.hardware.probe import probe

        platform = config.platform(scope)
        names = driver_names(scope, platform)
        seal = probe(layout, scope, platform.kind, take, plan, names=names)
    probed = require_probe(layout, scope)
    print(f"{seal.name}: {probed.fingerprint.model}, {probed.threads} thread")
    for compute in probed.compute:
        rho = ", ".join(
            f"rho {balance_flop_per_byte(compute.gflop_s / 1000, b.gb_s):.2f} ({b.method})"
            for b in probed.bandwidth
        )
        guarded = f", stopped by the time guard at {compute.size}" if compute.guarded else ""
        print(f"  {compute.dtype}: phi {compute.gflop_s:.1f} GFLOP/s, {rho}{guarded}")
    for bandwidth in probed.bandwidth:
        print(f"  {bandwidth.method}: beta {bandwidth.gb_s:.1f} GB/s")
    return 0
