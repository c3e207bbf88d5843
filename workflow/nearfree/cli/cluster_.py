"""Test the SLURM cluster: run a one-second job on a node of every platform, and print its report.

config/cluster.yaml sets the resources of a job; the platforms are those of `here`.
"""

import argparse

from nearfree.cli.common import add_roots, positive


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's arguments."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    check = actions.add_parser("check", help="submit a job a platform, and print its report")
    check.add_argument(
        "--timeout",
        type=positive,
        default=300,
        metavar="S",
        help="cancel jobs that have not begun after S seconds (default: 300)",
    )
    check.add_argument("--logs", default="logs", help="a folder on a shared file system")
    add_roots(check, inner=True)


def run(args: argparse.Namespace) -> int:
    """Print a line a platform, and return 2 if anything is wrong."""
    from pathlib import Path

    from nearfree.pipeline.cluster.check import accounting, check
    from nearfree.pipeline.pipeline import Pipeline

    pipeline = Pipeline(args.results, args.config)
    failed = 0
    for finding in check(pipeline, Path(args.logs), args.timeout):
        state = finding.state
        where = f"asked for {finding.resources or 'SLURM defaults'}"
        if state is not None:
            gpus = ", ".join(state.gpus) or f"GPUs {state.visible}" * (state.visible is not None)
            what = [f"{state.cpus} CPUs", *[gpus] * bool(gpus)]
            where += f"; job {state.job_id} on {state.node} ({state.partition}): {', '.join(what)}"
        print(f"{finding.platform}: {'wrong' if finding.wrong else 'fine'}; {where}")
        for text in finding.wrong:
            print(f"  wrong: {text}")
        for text in finding.notes:
            print(f"  note: {text}")
        failed = 2 if finding.wrong else failed
    if not accounting():
        print(
            "note: the cluster keeps no accounts, so sacct reports nothing: set "
            "`slurm-status-command: squeue` in profiles/slurm/config.yaml"
        )
    return failed
