"""Which setting to run: the one of most predicted tokens a second, on what it is tuned on."""

from collections.abc import Iterable, Sequence

from msgspec import Struct, structs

from nearfree.core.candidates import LENGTHS, candidates
from nearfree.core.drafting import Drafting
from nearfree.derive.tune.curve import EngineCurve, curve_of
from nearfree.derive.tune.replayed import Cost, Trace, tokens_a_second

WORTH = 0.02
"""What another number of threads, or another way to store weights, has to win: less is noise."""


class Ranked(Struct, frozen=True, kw_only=True):
    """A setting with its predicted tokens a second."""

    drafting: Drafting
    tokens_s: float


class Choice(Struct, frozen=True, kw_only=True):
    """What is chosen, what stands beside it, and everything that was weighed, the best first."""

    chosen: Ranked
    none: Ranked
    """Without drafts, on the threads and with the storage at which that is fastest."""
    neighbours: tuple[Drafting, ...]
    ranked: tuple[Ranked, ...]
    cut: Ranked | None
    """The best setting whose drafts are cut to tile edges, which no option of an engine does."""


def choose(known: Sequence[Trace], cost: Cost, sources: tuple[Drafting, ...]) -> Choice:
    """Return the setting of most predicted tokens a second, and the two K around it.

    Parameters
    ----------
    known
        The traces that are tuned on.
    cost
        Curves of every number of threads and way to store weights that is weighed.
    """
    base = [_plain(curve) for curve in cost.curves]
    asked = [
        structs.replace(each, threads=run.threads, repack=run.repack)
        for run in base
        for each in candidates(sources, _fitting(cost, run))
    ]
    ranked = _ranked(known, asked, cost)
    none = _first([each for each in ranked if each.drafting.drafter == "none"])
    best = _first(ranked)
    chosen = best if best.tokens_s > none.tokens_s else none
    return Choice(
        chosen=chosen,
        none=none,
        neighbours=neighbours(chosen.drafting, ranked),
        ranked=tuple(ranked),
        cut=_cut(known, asked, cost),
    )


def choose_by_kind(
    known: Sequence[Trace], cost: Cost, sources: tuple[Drafting, ...]
) -> dict[str, Choice]:
    """Return the choice of each kind of prompts apart, as of `choose`; none of one kind alone.

    A kind whose outputs all ended with their first token has none.
    """
    kinds = sorted({trace.kind for trace in known})
    parts = {kind: [each for each in known if each.kind == kind] for kind in kinds}
    return {
        kind: choose(part, cost, sources)
        for kind, part in parts.items()
        if len(kinds) > 1 and any(each.tokens > 1 for each in part)
    }


def fastest(curves: Sequence[EngineCurve]) -> Drafting:
    """Return the threads and storage on which one row takes least, without drafts.

    Where several hardly differ it is what engines do by default: repacked, on fewest threads.
    """
    least = min(curve.at(1) for curve in curves)
    near = [_plain(curve) for curve in curves if curve.at(1) * (1 - WORTH) <= least]
    return min(near, key=lambda each: (not each.repack, each.threads))


def _plain(curve: EngineCurve) -> Drafting:
    return Drafting(threads=curve.setting.threads or 1, repack=bool(curve.setting.repack))


def _fitting(cost: Cost, run: Drafting) -> tuple[int, ...]:
    """Return the K whose rows T(N) was measured up to."""
    longest = curve_of(cost.curves, threads=run.threads, repack=run.repack).n[-1] - 1
    return tuple(k for k in LENGTHS if k <= longest)


def _ranked(known: Sequence[Trace], asked: Iterable[Drafting], cost: Cost) -> list[Ranked]:
    found = [Ranked(drafting=each, tokens_s=tokens_a_second(known, each, cost)) for each in asked]
    return sorted(found, key=lambda each: -each.tokens_s)


def _first(ranked: Sequence[Ranked]) -> Ranked:
    """Return the best; of those that win too little over it, the one that changes least.

    That is repacked, as engines store weights by default, then of fewest threads.
    """
    best = ranked[0]
    near = [each for each in ranked if each.tokens_s >= best.tokens_s * (1 - WORTH)]
    same = [each for each in near if _alike(each.drafting, best.drafting)]
    return min(same, key=lambda each: (not each.drafting.repack, each.drafting.threads))


def _alike(one: Drafting, other: Drafting) -> bool:
    return structs.replace(one, threads=1, repack=True) == structs.replace(
        other, threads=1, repack=True
    )


def neighbours(chosen: Drafting, ranked: Sequence[Ranked]) -> tuple[Drafting, ...]:
    """Return the settings with the next smaller and the next larger K, of the same drafter.

    Beside no drafts stand the best two settings that draft.
    """
    if chosen.drafter == "none":
        drafting = [each.drafting for each in ranked if each.drafting.drafter != "none"]
        same = [each for each in drafting if (each.threads, each.repack) == _where(chosen)]
        return tuple(same[:2])
    same = [
        each.drafting
        for each in ranked
        if each.drafting.kin == chosen.kin and _where(each.drafting) == _where(chosen)
    ]
    below = [each for each in same if each.k < chosen.k]
    above = [each for each in same if each.k > chosen.k]
    return (
        *sorted(below, key=lambda each: -each.k)[:1],
        *sorted(above, key=lambda each: each.k)[:1],
    )


def _where(drafting: Drafting) -> tuple[int, bool]:
    return drafting.threads, drafting.repack


def _cut(known: Sequence[Trace], asked: Iterable[Drafting], cost: Cost) -> Ranked | None:
    """Return the best setting whose drafts end at the edges of its own curve.

    Those that remember are left out: what a cut would make of their later drafts was not traced.
    """
    cuts = []
    for each in asked:
        edges = curve_of(cost.curves, threads=each.threads, repack=each.repack).edges
        if each.drafter != "none" and not each.remembers:
            cuts.append(structs.replace(each, edges=tuple(n for n in edges if n <= 1 + each.k)))
    return next(iter(_ranked(known, cuts, cost)), None)
