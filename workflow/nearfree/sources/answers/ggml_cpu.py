"""The CPU flags that a build of ggml is compiled for, by the release's lists."""

import re
from collections.abc import Iterable, Mapping

from msgspec import Struct

from nearfree.errors import ConfigError, EvidenceError
from nearfree.hardware.instructions import plain
from nearfree.log.events import Branch
from nearfree.sources.cpp.conditions import FACTS, implications
from nearfree.sources.language.rule import Rule

VARIANTS, FEATURE = "mechanism_variants", "mechanism_feature_"
NAMES = frozenset(FACTS.values())
UNREAD = frozenset({"amxint8", "amxtile", "amxbf16"})
"""Instruction sets with kernels of their own, whose rules are not read."""
_SGEMM_FEATURE, _REPACK_FEATURE = "LLAMAFILE", "REPACK"
"""Features that a library lists if it has these paths."""
_ENABLED = re.compile(r"\b([A-Z][A-Z0-9_]*) = 1\b")


class Variant(Struct, frozen=True, kw_only=True):
    """A prebuilt library: its name, its compiled-in flags, its score, and the rules' branches.

    `branches` are those of the list of variants and of each of its features.
    """

    name: str
    flags: frozenset[str]
    score: int
    branches: tuple[tuple[str, Branch], ...]


def with_implied(flags: Iterable[str]) -> frozenset[str]:
    """Return flags, in plain spelling, with all flags that the compiler implies."""
    return frozenset(implied for flag in flags for implied in implications(plain(flag)))


def facts_of(flags: Iterable[str]) -> dict[str, bool]:
    """Return the facts of a CPU that has exactly some flags, as rules name them."""
    implied = with_implied(flags)
    return {name: name in implied for name in sorted(NAMES)}


def known_flags(text: str) -> frozenset[str]:
    """Return the flags of a text like `avx2,avx512f`.

    Raises
    ------
    ConfigError
        No rule reads one of them.
    """
    flags = frozenset(plain(flag) for flag in text.split(",") if flag.strip())
    unknown = sorted(flags - NAMES - UNREAD)
    if unknown:
        raise ConfigError(
            f"no rule of ggml reads the CPU flag {unknown[0]!r}",
            remedy=f"Choose from {', '.join(sorted(NAMES))}",
        )
    return flags


def best_variant(rules: Mapping[str, Rule], machine_flags: Iterable[str]) -> Variant:
    """Return the prebuilt library that a machine loads: the runnable one of the highest score.

    Raises
    ------
    EvidenceError
        The release has no list of variants, or none of them runs on the machine.
    """
    if VARIANTS not in rules:
        raise EvidenceError(
            "no variants of a prebuilt library are read of this release",
            remedy="Give --cpu-flags, those that it is compiled with",
        )
    answer = rules[VARIANTS].value({})
    available = frozenset(map(plain, machine_flags))
    variants = []
    for line in answer.value.split(", "):
        name, *features = line.split()
        flags: list[str] = []
        branches = [(VARIANTS, answer.branch)]
        score, is_runnable = 1, True
        for feature in features:
            rule = rules.get(f"{FEATURE}{feature}")
            if rule is None:
                # A compiler option without a score: AMX_TILE, next to AMX_INT8.
                flags.append(plain(feature))
                continue
            feature_answer = rule.value({})
            compiled, required, feature_score = feature_answer.value.split("; ")
            flags += map(plain, compiled.split())
            branches.append((f"{FEATURE}{feature}", feature_answer.branch))
            is_runnable = is_runnable and available.issuperset(map(plain, required.split()))
            score += int(feature_score)
        if is_runnable:
            variants.append(
                Variant(name=name, flags=with_implied(flags), score=score, branches=tuple(branches))
            )
    if not variants:
        raise EvidenceError(
            "no variant of the prebuilt library runs on such a CPU", remedy="Check --cpu-flags"
        )
    return max(variants, key=lambda variant: variant.score)


def loaded_features(system_info: str) -> list[str]:
    """Return the features that a loaded library lists, in order: AVX2 of `AVX2 = 1 | FMA = 0`."""
    return _ENABLED.findall(system_info)


def loaded_flags(rules: Mapping[str, Rule], system_info: str) -> frozenset[str]:
    """Return the flags that a loaded library is compiled for, from the features that it lists.

    A feature of a prebuilt library stands for the flags that its release compiles it with.
    """
    flags: list[str] = []
    for name in loaded_features(system_info):
        rule = rules.get(f"{FEATURE}{name}")
        flags += rule.value({}).value.partition(";")[0].split() if rule else [name]
    return with_implied(flags)


def loaded_build(
    rules: Mapping[str, Rule], system_info: str, *, repack: bool
) -> tuple[frozenset[str], bool]:
    """Return the flags that a loaded library is compiled for, and whether it repacks weights.

    `repack` says whether repacking is allowed.

    Raises
    ------
    EvidenceError
        It is built without llamafile's SGEMM.
    """
    features = loaded_features(system_info)
    if _SGEMM_FEATURE not in features:
        raise EvidenceError(
            f"the rules of a library without {_SGEMM_FEATURE} = 1 in its system_info are not read",
            remedy="Measure a library built with it, as the releases are",
        )
    return loaded_flags(rules, system_info), repack and _REPACK_FEATURE in features
