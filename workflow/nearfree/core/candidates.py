"""The settings that tuning weighs: which K, which lookups, and what an engine does by default."""

from collections.abc import Mapping

from msgspec import structs

from nearfree.core.drafting import Drafter, Drafting
from nearfree.core.ngram_cache import SIZES
from nearfree.errors import ConfigError

LENGTHS = (1, 2, 3, 4, 6, 7, 8, 12, 15, 16, 31, 32)
"""K: those of a sweep, and those at which 1 + K rows fill tiles of 4, 8, 16 and 32."""
_OF_ONE_N: tuple[tuple[Drafter, tuple[int, ...]], ...] = (
    ("ngram_simple", (1, 2, 3, 4)),
    ("ngram_map_k", (2, 4)),
    ("ngram_map_k4v", (2, 4)),
    ("ngram_mod", (4,)),
)
"""llama.cpp's types of one n-gram length, and the lengths of each that are weighed."""
LOOKUPS: Mapping[str, tuple[Drafting, ...]] = {
    "llama_cpp": tuple(
        Drafting(drafter=drafter, k=1, ngram_max=n, ngram_min=n)
        for drafter, lengths in _OF_ONE_N
        for n in lengths
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
_MAPS: tuple[Drafter, ...] = (_SIMPLE, "ngram_map_k", "ngram_map_k4v")
_DRAFT = "draft"


def drafters(
    engine: str, drafter: str, defaults: tuple[Drafting, ...] = ()
) -> tuple[Drafting, ...]:
    """Return what is weighed for what was asked: drafters with K = 1, whose K is open, and others.

    Parameters
    ----------
    defaults
        What the engine's own lookups draft by default, weighed as they are.

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
    return (*LOOKUPS[engine], *defaults)


def own_defaults(speculation: Mapping[str, int]) -> tuple[Drafting, ...]:
    """Return what each type of a release's speculation drafts by default that needs no model.

    Parameters
    ----------
    speculation
        As a release's own source says it (`backends.builds.Build.speculation`).
    """
    found = []
    for drafter in _MAPS:
        if f"{drafter}.size_n" in speculation and speculation.get(f"{drafter}.min_hits", 1) == 1:
            n, k = (speculation[f"{drafter}.{size}"] for size in ("size_n", "size_m"))
            found.append(Drafting(drafter=drafter, k=k, ngram_max=n, ngram_min=n))
    if "ngram_mod.n_match" in speculation:
        n, k, least = (speculation[f"ngram_mod.{size}"] for size in ("n_match", "n_max", "n_min"))
        found.append(Drafting(drafter="ngram_mod", k=k, ngram_max=n, ngram_min=n, shortest=least))
    if "ngram_cache.n_draft" in speculation:
        shortest, *_, longest = SIZES
        k = speculation["ngram_cache.n_draft"]
        found.append(Drafting(drafter="ngram_cache", k=k, ngram_max=longest, ngram_min=shortest))
    return tuple(found)


def own_default(speculation: Mapping[str, int], drafter: str) -> Drafting | None:
    """Return what a release drafts where only the kind of its speculation is named, None without.

    Parameters
    ----------
    speculation
        As a release's own source says it (`backends.builds.Build.speculation`).
    """
    if drafter == "draft_model" and f"{_DRAFT}.n_max" in speculation:
        return Drafting(drafter="draft_model", k=speculation[f"{_DRAFT}.n_max"])
    if drafter == "prompt_lookup":
        return next(iter(own_defaults(speculation)), None)
    return None


def candidates(sources: tuple[Drafting, ...], lengths: tuple[int, ...] = LENGTHS) -> list[Drafting]:
    """Return every drafter with every K, and none; those that can draft nothing are left out.

    Parameters
    ----------
    sources
        As of `drafters`: one whose K is above 1 has that K alone.
    """
    found = [Drafting()]
    for source in sources:
        for k in lengths if source.k == 1 else (source.k,):
            if source.drafter == _SIMPLE and k < source.ngram_max:
                continue  # it takes no draft that is shorter than its n-gram
            found.append(structs.replace(source, k=k))
    return found
