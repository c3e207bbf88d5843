"""The actions of `nearfree rules`."""

import argparse
from itertools import groupby

from nearfree.cli.binaries import extraction_of, run_check, run_compile
from nearfree.cli.common import config_of, json_text, layout_of, print_seal, source_cache
from nearfree.core.scopes import SOURCES
from nearfree.log.events import Branch, SourceFetched
from nearfree.sources.classes import LOCK as CLASSES
from nearfree.sources.classes import locked_entry, read_class_lock, read_classes, renew_class_lock
from nearfree.sources.fetching.fork import STANDS_IN
from nearfree.sources.fetching.index import meter
from nearfree.sources.history import (
    Lock,
    Release,
    changed_rules,
    history,
    known_versions,
    lock_status,
    read_lock,
    renew_lock,
)
from nearfree.sources.language.reading import condition_text
from nearfree.sources.packages import package_name, parse_release
from nearfree.sources.record import record_extraction, recorded_extraction, stream_name

LOCK = "rules.lock"


def _lock(args: argparse.Namespace) -> Lock:
    return read_lock(args.config / LOCK)


def _extract(args: argparse.Namespace) -> int:
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


def _origin(source: SourceFetched) -> str:
    """Return the artefact that was read, how it was verified, and whether it is a substitute."""
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

    first = extraction.fetched[0]
    print(f"{extraction.package} {extraction.version}: {_origin(first)}")
    for rule in extraction.rules:
        print(f"\n{rule.rule}  ({rule.symbol}; inputs {', '.join(rule.inputs) or 'none'})")
        for branch in rule.branches:
            print(f"  {_branch_text(branch)}")
    print(f"\n{lock_status(_lock(args), extraction)}")
    return 0


def _branch_text(branch: Branch) -> str:
    """Return a branch's value and condition, with the file and line of its last quote."""
    place = branch.quotes[-1] if branch.quotes else None
    where = "" if place is None else f"   {place.file}:{place.lines[0]}"
    return f"{branch.value}  if {condition_text(branch)}{where}"


def _diff(args: argparse.Namespace) -> int:
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


def _change_text(release: Release, *, first: bool) -> str:
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


ACTIONS = {
    "extract": _extract,
    "show": _show,
    "diff": _diff,
    "check": run_check,
    "compile": run_compile,
    "history": _history,
    "classes": _classes,
}
"""The function of each action."""
