"""The settings that tuning weighs: which K, which lookups, and what an engine does by default."""

from collections.abc import Mapping
from itertools import product

from msgspec import structs

from nearfree.core.drafting import Drafter, Drafting
from nearfree.errors import ConfigError

LENGTHS = (1, 2, 3, 4, 6, 7, 8, 12, 15, 16, 31, 32)
"""K: those of a sweep, and those at which 1 + K rows fill tiles of 4, 8, 16 and 32."""
SWEEP = (0, 1, 2, 3, 4, 6, 8, 12, 16, 32)
"""K of a sweep by hand, which a choice is compared with."""
LOOKUPS: Mapping[str, tuple[Drafting, ...]] = {
    "llama_cpp": tuple(
        Drafting(drafter="ngram_simple", k=1, ngram_max=n, ngram_min=n) for n in (1, 2, 3, 4)
    ),
    "openvino": tuple(
        Drafting(drafter="prompt_lookup", k=1, ngram_max=n, ngram_min=1, first=True, padded=True)
        for n in (1, 2, 3, 4)
    ),
}
"""The lookups of each engine that its own options can ask for, by engine."""
REPACKS: Mapping[str, tuple[bool, ...]] = {"llama_cpp": (True, False)}
"""Whether weights may be stored in an order of the engine's own, where that can be asked for."""
_SIMPLE: Drafter = "ngram_simple"
_DRAFT = "draft"


def drafters(engine: str, drafter: str) -> tuple[Drafting, ...]:
    """Return the drafters that are traced for what was asked, each with K = 1.

    Raises
    ------
    ConfigError
        The engine has no lookup that is known here.
    """
    if drafter == "draft_model":
        return (Drafting(drafter="draft_model", k=1),)
    if drafter == "none":
        return ()
    if engine not in LOOKUPS:
        raise ConfigError(
            f"{engine} has no lookup that is known here", remedy="Ask for --drafter none"
        )
    return LOOKUPS[engine]


def own_default(speculation: Mapping[str, int], drafter: str) -> Drafting | None:
    """Return what a release drafts where only the kind of its speculation is named, None without.

    Parameters
    ----------
    speculation
        As a release's own source says it (`backends.builds.Build.speculation`).
    """
    if drafter == "draft_model" and f"{_DRAFT}.n_max" in speculation:
        return Drafting(drafter="draft_model", k=speculation[f"{_DRAFT}.n_max"])
    if drafter == "prompt_lookup" and f"{_SIMPLE}.size_n" in speculation:
        n, k = (speculation[f"{_SIMPLE}.{size}"] for size in ("size_n", "size_m"))
        return Drafting(drafter=_SIMPLE, k=k, ngram_max=n, ngram_min=n)
    return None


def candidates(sources: tuple[Drafting, ...], lengths: tuple[int, ...] = LENGTHS) -> list[Drafting]:
    """Return every drafter with every K, and none; those that can draft nothing are left out."""
    found = [Drafting()]
    for source, k in product(sources, lengths):
        if source.drafter == _SIMPLE and k < source.ngram_max:
            continue  # it takes no draft that is shorter than its n-gram
        found.append(structs.replace(source, k=k))
    return found
