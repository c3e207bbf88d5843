"""The candidate settings of tuning: draft lengths K, lookups, and an engine's own defaults."""

from collections.abc import Mapping

from msgspec import structs

from nearfree.core.drafting import Drafter, Drafting
from nearfree.core.ngram_cache import SIZES
from nearfree.core.precision import Dtype
from nearfree.errors import ConfigError

LENGTHS = (1, 2, 3, 4, 6, 7, 8, 12, 15, 16, 31, 32)
"""Candidate K: a sweep, and those at which 1 + K rows fill tiles of 4, 8, 16 and 32 rows."""
_NGRAM_LENGTHS: tuple[tuple[Drafter, tuple[int, ...]], ...] = (
    ("ngram_simple", (1, 2, 3, 4)),
    ("ngram_map_k", (2, 4)),
    ("ngram_map_k4v", (2, 4)),
    ("ngram_mod", (4,)),
)
"""llama.cpp's lookups with a single n-gram length, and the candidate lengths of each."""
LOOKUPS: Mapping[str, tuple[Drafting, ...]] = {
    "llama_cpp": tuple(
        Drafting(drafter=drafter, k=1, ngram_max=n, ngram_min=n)
        for drafter, lengths in _NGRAM_LENGTHS
        for n in lengths
    ),
    "openvino": tuple(
        Drafting(drafter="prompt_lookup", k=1, ngram_max=n, ngram_min=1, first=True, padded=True)
        for n in (1, 2, 3, 4)
    ),
}
"""The lookups that an engine's own options can select, by engine."""
REPACKS: Mapping[str, tuple[bool, ...]] = {"llama_cpp": (True, False)}
"""The values of `repack` (weights in the engine's own order), for engines with that option."""
DRAFTED_CACHES: Mapping[str, Dtype] = {"openvino": "float32"}
"""The format of cache with which an engine drafts, where it is not its own choice.

With a cache in float32 OpenVINO computes in float32, too. Only then does a row beside others not
depend on how many they are, so that the output is the same with any drafts. A row that is alone
runs in another kernel, whose rounding differs: outputs without drafts may part from those.
"""
_SIMPLE: Drafter = "ngram_simple"
_MAPS: tuple[Drafter, ...] = (_SIMPLE, "ngram_map_k", "ngram_map_k4v")
_DRAFT = "draft"


def check_cache(engine: str, kv_dtype: Dtype | None) -> None:
    """Raise ConfigError for a format of the cache that an engine is not made to hold here."""
    if kv_dtype not in (None, DRAFTED_CACHES.get(engine)):
        formats = ", ".join(f"{name}: {dtype}" for name, dtype in DRAFTED_CACHES.items())
        raise ConfigError(
            f"{engine} is measured with its own choice of cache, not in {kv_dtype}",
            remedy=f"Leave out kv_dtype, or choose what an engine has ({formats})",
        )


def drafters(
    engine: str, drafter: str, defaults: tuple[Drafting, ...] = ()
) -> tuple[Drafting, ...]:
    """Return the candidate drafters for the requested kind of drafter.

    A drafter with K = 1 stands for all K; one with another K is a candidate with that K alone.

    Parameters
    ----------
    defaults
        The default settings of the engine's own lookups, candidates with their own K.

    Raises
    ------
    ConfigError
        No lookup of the engine is known here.
    """
    if drafter == "draft_model":
        return (Drafting(drafter="draft_model", k=1),)
    if drafter == "none":
        return ()
    if engine not in LOOKUPS:
        raise ConfigError(f"no lookup of {engine} is known here", remedy="Use --drafter none")
    return (*LOOKUPS[engine], *defaults)


def default_draftings(speculation: Mapping[str, int]) -> tuple[Drafting, ...]:
    """Return the default settings of a release's drafters that need no draft model.

    Parameters
    ----------
    speculation
        Option defaults read from the release's source (`backends.builds.Build.speculation`).
    """
    draftings = []
    for drafter in _MAPS:
        if f"{drafter}.size_n" in speculation and speculation.get(f"{drafter}.min_hits", 1) == 1:
            n, k = (speculation[f"{drafter}.{size}"] for size in ("size_n", "size_m"))
            draftings.append(Drafting(drafter=drafter, k=k, ngram_max=n, ngram_min=n))
    if "ngram_mod.n_match" in speculation:
        n, k, shortest = (
            speculation[f"ngram_mod.{size}"] for size in ("n_match", "n_max", "n_min")
        )
        draftings.append(
            Drafting(drafter="ngram_mod", k=k, ngram_max=n, ngram_min=n, shortest=shortest)
        )
    if "ngram_cache.n_draft" in speculation:
        shortest, *_, longest = SIZES
        k = speculation["ngram_cache.n_draft"]
        draftings.append(
            Drafting(drafter="ngram_cache", k=k, ngram_max=longest, ngram_min=shortest)
        )
    return tuple(draftings)


def default_drafting(speculation: Mapping[str, int], drafter: str) -> Drafting | None:
    """Return a release's default setting for a kind of drafter; None if it has no such default."""
    if drafter == "draft_model" and f"{_DRAFT}.n_max" in speculation:
        return Drafting(drafter="draft_model", k=speculation[f"{_DRAFT}.n_max"])
    if drafter == "prompt_lookup":
        return next(iter(default_draftings(speculation)), None)
    return None


def candidates(sources: tuple[Drafting, ...], lengths: tuple[int, ...] = LENGTHS) -> list[Drafting]:
    """Return all candidate settings: no drafter, and every drafter with every K.

    Settings that can never draft are left out.

    Parameters
    ----------
    sources
        Drafters as from `drafters`: K = 1 stands for all lengths, another K for itself alone.
    """
    settings = [Drafting()]
    for source in sources:
        for k in lengths if source.k == 1 else (source.k,):
            if source.drafter == _SIMPLE and k < source.ngram_max:
                continue  # ngram_simple discards drafts shorter than its n-gram
            settings.append(structs.replace(source, k=k))
    return settings
