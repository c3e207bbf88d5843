"""`nearfree rules`: rules of backends' releases, read from their source code."""

import argparse

from nearfree.cli.common import (
    NEW_TAKE,
    OFFLINE,
    TABLE_OR_JSON,
    TAKE,
    TEXT_OR_JSON,
    add_action,
    command,
)


def _rules_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    extract = add_action(actions, "extract", "record a release's rules in the event log")
    extract.add_argument("release", help="package==version, such as vllm==0.20.2")
    TAKE(extract)
    show = add_action(actions, "show", "print a release's rules, with file and lines")
    show.add_argument("release", help="package==version, such as vllm==0.20.2")
    TABLE_OR_JSON(show)
    diff = add_action(actions, "diff", "compare the rules of two releases")
    diff.add_argument("package", help="such as vllm")
    diff.add_argument("first", metavar="VERSION", help="the older release")
    diff.add_argument("second", metavar="VERSION", help="the newer release")
    check = add_action(
        actions, "check", "compare rules with the kernels that a release's binaries hold"
    )
    check.add_argument("release", help="package==version, of vllm, sgl-kernel or xformers")
    TEXT_OR_JSON(check)
    compiled = add_action(
        actions,
        "compile",
        "compile a release's MoE kernel ahead of time, and record its registers and occupancy",
    )
    compiled.add_argument("release", help="package==version, pinned in envs/kernels.lock")
    for action in (check, compiled):
        NEW_TAKE(action)
    history = add_action(actions, "history", "list the releases at which a package's rules changed")
    history.add_argument("package", help="such as vllm")
    history.add_argument(
        "--from", dest="oldest", metavar="VERSION", help="the oldest release (default: the lock's)"
    )
    history.add_argument(
        "--lock", action="store_true", help="write the digests of the rules into the lock"
    )
    classes = add_action(
        actions, "classes", "list the releases at which an engine gained or lost model classes"
    )
    classes.add_argument("package", choices=["vllm", "sglang"], help="the engine")
    classes.add_argument("--lock", action="store_true", help="write the classes into the lock")
    for action in (extract, show, diff, check, compiled, history, classes):
        OFFLINE(action)


@command("rules", _rules_arguments)
def run_rules(args: argparse.Namespace) -> int:
    """Read the block and tile rules of any backend release from its source code.

    `extract` records a release's rules in the event log; `show` prints them with file and lines;
    `diff` compares two releases. `check` lists the attention kernels in a release's binaries,
    records them in the event log and compares them with the rules; the exit code is 2 if a
    difference is unexplained. `compile` compiles a release's MoE kernel without a GPU, and records
    registers and occupancy. `history` lists the releases at which a package's rules changed,
    `classes` those at which vLLM or SGLang gained or lost a model class.

    Example: nearfree rules show vllm==0.33.0
    """
    from nearfree.cli.rule_actions import ACTIONS

    return ACTIONS[args.action](args)
