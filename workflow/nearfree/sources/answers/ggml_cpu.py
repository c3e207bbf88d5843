"""What a build of ggml has of a CPU: the flags that it is compiled for, by a release's lists."""

import re
from collections.abc import Iterable, Mapping

from msgspec import Struct

from nearfree.errors import ConfigError, EvidenceError
from nearfree.hardware.instructions import plain
from nearfree.log.events import Branch
from nearfree.sources.cpp.conditions import FACTS, IMPLIED
from nearfree.sources.language.rule import Rule

VARIANTS, FEATURE = "mechanism_variants", "mechanism_feature_"
NAMES = frozenset(FACTS.values())
UNREAD = frozenset({"amxint8", "amxtile", "amxbf16"})
"""Instructions with kernels of their own, which are not read."""
_SGEMM, _REPACK = "LLAMAFILE", "REPACK"
"""What a library says of itself where it has these ways."""
_HELD = re.compile(r"\b([A-Z][A-Z0-9_]*) = 1\b")


class Variant(Struct, frozen=True, kw_only=True):
    """A prebuilt library: its name, the flags that it is compiled with, its score, and the places.

    `branches` are those of the list of variants and of the features that it has.
    """

    name: str
    flags: frozenset[str]
    score: int
    branches: tuple[tuple[str, Branch], ...]


def with_implied(flags: Iterable[str]) -> frozenset[str]:
    """Return flags, spelt plainly, with those that a compiler takes for granted beside them."""
    found = set(map(plain, flags))
    waiting = list(found)
    while waiting:
        below = IMPLIED.get(waiting.pop())
        if below is not None and below not in found:
            found.add(below)
            waiting.append(below)
    return frozenset(found)


def facts_of(flags: Iterable[str]) -> dict[str, bool]:
    """Return what rules ask of a CPU that has some flags and no others."""
    held = with_implied(flags)
    return {name: name in held for name in sorted(NAMES)}


def known_flags(text: str) -> frozenset[str]:
    """Return the flags of a text like `avx2,avx512f`.

    Raises
    ------
    ConfigError
        One of them is none that a rule asks for.
    """
    flags = frozenset(plain(each) for each in text.split(",") if each.strip())
    odd = sorted(flags - NAMES - UNREAD)
    if odd:
        raise ConfigError(
            f"no rule of ggml asks for the CPU flag {odd[0]!r}",
            remedy=f"Choose from {', '.join(sorted(NAMES))}",
        )
    return flags


def best_variant(rules: Mapping[str, Rule], machine: Iterable[str]) -> Variant:
    """Return the prebuilt library that a machine with some flags loads: that of the highest score.

    Raises
    ------
    EvidenceError
        The release has no list of variants, or one names a feature that it says nothing of.
    """
    if VARIANTS not in rules:
        raise EvidenceError(
            "no variants of a prebuilt library are read of this release",
            remedy="Give --cpu-flags, those that it is compiled with",
        )
    answer = rules[VARIANTS].value({})
    held = frozenset(map(plain, machine))
    found = []
    for line in answer.value.split(", "):
        name, *features = line.split()
        flags: list[str] = []
        branches = [(VARIANTS, answer.branch)]
        score, runs = 1, True
        for feature in features:
            rule = rules.get(f"{FEATURE}{feature}")
            if rule is None:
                # A compiler's option that scores nothing: AMX_TILE, beside AMX_INT8.
                flags.append(plain(feature))
                continue
            said = rule.value({})
            compiled, needs, points = said.value.split("; ")
            flags += map(plain, compiled.split())
            branches.append((f"{FEATURE}{feature}", said.branch))
            runs = runs and held.issuperset(map(plain, needs.split()))
            score += int(points)
        if runs:
            found.append(
                Variant(name=name, flags=with_implied(flags), score=score, branches=tuple(branches))
            )
    if not found:
        raise EvidenceError(
            "no variant of the prebuilt library runs on such a CPU", remedy="Check --cpu-flags"
        )
    return max(found, key=lambda each: each.score)


def told_features(system_info: str) -> list[str]:
    """Return what a loaded library says that it has, in its order: `AVX2 = 1 | FMA = 0` is AVX2."""
    return _HELD.findall(system_info)


def told_flags(rules: Mapping[str, Rule], system_info: str) -> frozenset[str]:
    """Return what a loaded library is compiled for, by the features that it tells of.

    A feature of a prebuilt library stands for the flags that its release compiles it with.
    """
    flags: list[str] = []
    for name in told_features(system_info):
        rule = rules.get(f"{FEATURE}{name}")
        flags += rule.value({}).value.partition(";")[0].split() if rule else [name]
    return with_implied(flags)


def told_build(
    rules: Mapping[str, Rule], system_info: str, *, repack: bool
) -> tuple[frozenset[str], bool]:
    """Return what a loaded library is compiled for, and whether it repacks weights.

    Parameters
    ----------
    repack
        Whether weights may be repacked, where it can.

    Raises
    ------
    EvidenceError
        It is built without llamafile's products.
    """
    features = told_features(system_info)
    if _SGEMM not in features:
        raise EvidenceError(
            f"a library without {_SGEMM} = 1 in its system_info is not read",
            remedy="Measure a library that is built with it, as releases are",
        )
    return told_flags(rules, system_info), repack and _REPACK in features
