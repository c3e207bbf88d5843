"""`nearfree rules`: rules of backends' releases, read from their source code."""

import argparse
from itertools import groupby
from typing import TYPE_CHECKING

from nearfree.cli.binaries import run_check, run_compile
from nearfree.cli.common import (
    NEW_TAKE,
    OFFLINE,
    TABLE_OR_JSON,
    TAKE,
    TEXT_OR_JSON,
    add_action,
    command,
    config_of,
    json_text,
    layout_of,
    print_seal,
    source_cache,
)

if TYPE_CHECKING:
    from nearfree.log.events import Branch, SourceFetched
    from nearfree.sources.extraction import Extraction
    from nearfree.sources.history import Lock, Release


LOCK = "rules.lock"


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
    actions = {
        "extract": _extract,
        "show": _show,
        "diff": _diff,
        "check": run_check,
        "compile": run_compile,
        "history": _history,
        "classes": _classes,
    }
    return actions[args.action](args)


def _lock(args: argparse.Namespace) -> "Lock":
    from nearfree.sources.history import read_lock

    return read_lock(args.config / LOCK)


def extraction_of(args: argparse.Namespace, release: str) -> "Extraction":
    """Return a release's rules: those on record, else read from its sources."""
    from nearfree.sources.packages import parse_release
    from nearfree.sources.record import find_extraction

    package, version = parse_release(release)
    return find_extraction(
        layout_of(args), package, version, cache=source_cache(), offline=args.offline
    )


def _extract(args: argparse.Namespace) -> int:
    from nearfree.core.scopes import SOURCES
    from nearfree.sources.history import lock_status
    from nearfree.sources.packages import parse_release
    from nearfree.sources.record import (
        record_extraction,
        recorded_extraction,
        stream_name,
    )

    package, version = parse_release(args.release)
    layout = layout_of(args)
    take = args.take or config_of(args).take(SOURCES, stream_name(package, version))
    seal = record_extraction(
        layout, package, version, cache=source_cache(), offline=args.offline, take=take
    )
    extraction = recorded_extraction(layout, package, version)
    print_seal(seal)
    if extraction is None:
        return 0
    for source in extraction.fetched:
        print(f"  {len(source.members)} files of {_origin(source)}")
    for rule in extraction.rules:
        print(f"  {rule.rule}: {len(rule.branches)} branches, {rule.points} points agree")
    unread = [tuned for tuned in extraction.tuned if tuned.odd is not None]
    if extraction.tuned:
        print(f"  {len(extraction.tuned)} tuned files, {len(unread)} of them odd")
    for tuned in unread:
        print(f"    {tuned.file}: {tuned.odd}")
    print(f"  {lock_status(_lock(args), extraction)}")
    return 0


def _origin(source: "SourceFetched") -> str:
    """Return the artefact that was read, how it was verified, and whether it is a substitute."""
    from nearfree.sources.fetching.fork import STANDS_IN

    note = f": {STANDS_IN}" if source.verified == "stand_in" else ""
    return f"{source.artefact}, checked by {source.verified}{note}"


def _show(args: argparse.Namespace) -> int:
    extraction = extraction_of(args, args.release)
    if args.format == "json":
        shown = {
            "package": extraction.package,
            "version": extraction.version,
            "sources": extraction.fetched,
            "rules": extraction.rules,
        }
        print(json_text(shown))
        return 0
    from nearfree.sources.history import lock_status

    first = extraction.fetched[0]
    print(f"{extraction.package} {extraction.version}: {_origin(first)}")
    for rule in extraction.rules:
        print(f"\n{rule.rule}  ({rule.symbol}; inputs {', '.join(rule.inputs) or 'none'})")
        for branch in rule.branches:
            print(f"  {_branch_text(branch)}")
    print(f"\n{lock_status(_lock(args), extraction)}")
    return 0


def _branch_text(branch: "Branch") -> str:
    """Return a branch's value and condition, with the file and line of its last quote."""
    from nearfree.sources.language.reading import condition_text

    place = branch.quotes[-1] if branch.quotes else None
    where = "" if place is None else f"   {place.file}:{place.lines[0]}"
    return f"{branch.value}  if {condition_text(branch)}{where}"


def _diff(args: argparse.Namespace) -> int:
    from nearfree.sources.history import changed_rules
    from nearfree.sources.packages import package_name

    package = package_name(args.package)
    first, second = (extraction_of(args, f"{package}=={v}") for v in (args.first, args.second))
    changed = changed_rules(first.meanings(), second.meanings())
    if not changed:
        print(f"{package} {first.version} and {second.version} have the same rules")
    for name in changed:
        print(f"{name}")
        for extraction, sign in ((first, "-"), (second, "+")):
            rules = [rule for rule in extraction.rules if rule.rule == name]
            for branch in (branch for rule in rules for branch in rule.branches):
                print(f"  {sign} {_branch_text(branch)}")
    return 0


def _history(args: argparse.Namespace) -> int:
    from nearfree.sources.fetching.index import meter
    from nearfree.sources.history import history, known_versions, renew_lock
    from nearfree.sources.packages import package_name, parse_release

    package, lock = package_name(args.package), _lock(args)
    oldest = args.oldest and parse_release(f"{package}=={args.oldest}")[1]
    versions = known_versions(package, lock, offline=args.offline, oldest=oldest)
    releases = history(package, versions, lock, cache=source_cache(), offline=args.offline)
    first_read = next((release for release in releases if release.refused is None), None)
    for text, group in groupby(
        releases, lambda release: _change_text(release, first=release is first_read)
    ):
        span_releases = list(group)
        span = span_releases[0].version
        if len(span_releases) > 1:
            span += f" to {span_releases[-1].version} ({len(span_releases)} releases)"
        print(f"{span}: {text}")
    read_count = sum(release.refused is None for release in releases)
    print(
        f"{len(releases)} releases: {read_count} read, {len(releases) - read_count} refused;"
        f" {meter.fetched_bytes / 1e6:.1f} MB fetched"
    )
    if args.lock:
        renew_lock(args.config / LOCK, package, releases)
        print(f"wrote {args.config / LOCK}")
    return 0


def _change_text(release: "Release", *, first: bool) -> str:
    """Return how a release's rules compare with the previous release's, and with the lock."""
    change = f"changed: {', '.join(release.changed)}" if release.changed else "the same rules"
    if first:
        change = "the first one read"
    if release.refused is not None:
        *_, reason = release.refused.split(f" {release.version}: ", maxsplit=1)
        change = f"refused: {reason}"  # without the release, so that lines can be grouped
    if not release.had:
        return change
    if release.locked is None:
        return f"{change}; not in the lock"
    return change if release.locked else f"{change}; differs from the lock"


def _classes(args: argparse.Namespace) -> int:
    from nearfree.sources.classes import LOCK as CLASSES
    from nearfree.sources.classes import (
        locked_entry,
        read_class_lock,
        read_classes,
        renew_class_lock,
    )
    from nearfree.sources.history import known_versions

    path, engine = args.config / CLASSES, args.package
    versions = known_versions(engine, _lock(args), offline=args.offline)
    classes_by_version = read_classes(engine, versions, cache=source_cache(), offline=args.offline)
    previous = frozenset[str]()
    for version, classes in classes_by_version.items():
        names = classes.own | classes.transformers
        signs = [f"+ {name}" for name in sorted(names - previous)]
        signs += [f"- {name}" for name in sorted(previous - names)]
        if signs:
            print(f"{version}: {', '.join(signs) if previous else f'{len(names)} classes'}")
        previous = names
    as_locked = read_class_lock(path).get(engine) == locked_entry(classes_by_version)
    state = "equal to the lock" if as_locked else "different from the lock"
    print(f"{len(classes_by_version)} releases read; {state}")
    if args.lock:
        renew_class_lock(path, engine, classes_by_version)
        print(f"wrote {path}")
    return 0
