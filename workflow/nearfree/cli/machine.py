"""Commands of this machine: its probe, its cluster, and the environments of backends."""

import argparse

from nearfree.cli.common import (
    TAKE,
    add_action,
    argument,
    command,
    layout_of,
    local_scope,
    need_torch,
    positive,
)


@command(
    "probe",
    argument("platform", help="the platform that this machine is, such as cpu"),
    TAKE,
)
def run_probe(args: argparse.Namespace) -> int:
    """Probe this machine: phi (FLOP/s) by dtype, beta (bytes/s) by two methods, rho = phi / beta.

    Example: nearfree probe cpu
    """
    from nearfree.config.plans import Plans
    from nearfree.hardware.identity import STREAM, require_probe
    from nearfree.units import balance_flop_per_byte

    config, scope = local_scope(args)
    layout, plan = layout_of(args), Plans(config, scope).probe()
    take, curves = args.take or config.take(scope, STREAM), config.curves(scope)
    if curves:
        from nearfree.hardware.simulated import read_machine, simulate_probe

        seal = simulate_probe(layout, scope, take, plan, read_machine(curves, scope))
    else:
        need_torch()
        from nearfree.hardware.platforms import driver_names
        from nearfree.hardware.probe import probe

        platform = config.platform(scope)
        names = driver_names(scope, platform)
        seal = probe(layout, scope, platform.kind, take, plan, names=names)
    probed = require_probe(layout, scope)
    threads = f"{probed.threads} thread{'s' if probed.threads > 1 else ''}"
    print(f"{seal.name}: {probed.fingerprint.model}, {threads}")
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


def _cluster_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    check = add_action(actions, "check", "submit one job per platform, and print its report")
    check.add_argument(
        "--timeout",
        type=positive,
        default=300,
        metavar="S",
        help="cancel jobs that have not begun after S seconds (default: 300)",
    )
    check.add_argument(
        "--logs", default="logs", help="a folder on a shared file system (default: logs)"
    )


@command("cluster", _cluster_arguments)
def run_cluster(args: argparse.Namespace) -> int:
    """Test the SLURM cluster: run a one-second job on each platform's node, and print its report.

    config/cluster.yaml sets the resources of a job; the platforms are those of `here`.

    Example: nearfree cluster check --timeout 60
    """
    from pathlib import Path

    from nearfree.pipeline.cluster.check import accounting, check
    from nearfree.pipeline.pipeline import Pipeline

    pipeline = Pipeline(args.results, args.config)
    failed = 0
    for finding in check(pipeline, Path(args.logs), args.timeout):
        state = finding.state
        resources = f"asked for {finding.resources or 'SLURM defaults'}"
        if state is not None:
            gpus = ", ".join(state.gpus) or f"GPUs {state.visible}" * (state.visible is not None)
            devices = [f"{state.cpus} CPUs", *[gpus] * bool(gpus)]
            resources += (
                f"; job {state.job_id} on {state.node} ({state.partition}): {', '.join(devices)}"
            )
        print(f"{finding.platform}: {'wrong' if finding.wrong else 'fine'}; {resources}")
        for text in finding.wrong:
            print(f"  wrong: {text}")
        for text in finding.notes:
            print(f"  note: {text}")
        failed = 2 if finding.wrong else failed
    if not accounting():
        print(
            "note: the cluster has no accounting, so sacct reports nothing: set "
            "`slurm-status-command: squeue` in profiles/slurm/config.yaml"
        )
    return failed


def _environment_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    for action, text in (
        ("make", "install an environment if it is missing, and print its interpreter"),
        ("check", "compare the installed packages with an environment's lock"),
    ):
        action_parser = add_action(actions, action, text)
        action_parser.add_argument("name", help="the name of a lock under envs/, such as vllm")


@command("environment", _environment_arguments)
def run_environment(args: argparse.Namespace) -> int:
    """Make a backend's environment from its lock, or check this interpreter against a lock.

    `make` installs envs/NAME.lock and nearfree into .environments/NAME-DIGEST and prints its
    interpreter; if that exists, it installs nothing. `check` checks the interpreter that runs it,
    however it was installed: PYTHON -m nearfree environment check NAME.

    Example: nearfree environment make vllm
    """
    if args.action == "check":
        from nearfree.backends.environments.lock import lock_path, require

        require(args.name)
        print(f"this interpreter has the packages that {lock_path(args.name)} pins")
        return 0
    from nearfree.backends.environments.lock import Environment
    from nearfree.backends.environments.make import make

    environment = Environment(args.name)
    make(environment, lambda text: print(text, flush=True))
    print(environment.python)
    return 0
