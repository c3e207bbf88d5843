"""Request another take: raise its number in config/takes.yaml, so that the workflow measures."""

import argparse


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's arguments."""
    parser.add_argument("platform", help="a platform of `here`")
    parser.add_argument("study", nargs="?", help="one study (default: all of the platform)")
    parser.add_argument("--backend", metavar="NAME", help="only settings of this backend")


def run(args: argparse.Namespace) -> int:
    """Raise the takes and say what to run."""
    from nearfree.cli.common import here
    from nearfree.config.plans import raise_takes
    from nearfree.log.names import Layout

    config, scope = here(args)
    raised = raise_takes(config, Layout(args.results), scope, args.study, args.backend)
    for study, take in raised.items():
        print(f"{scope}/{study}: take {take}")
    print(f"Now run: snakemake --cores all {scope}")
    print(f"On a cluster: snakemake --profile slurm {scope}")
    return 0
