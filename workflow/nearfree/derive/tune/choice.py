"""The choice of a setting: the most predicted tokens per second on the tuning prompts."""

from collections import Counter
from collections.abc import Iterable, Sequence

from msgspec import Struct, structs

from nearfree.core.candidates import LENGTHS, candidates
from nearfree.core.drafting import Drafting
from nearfree.derive.tune.curve import EngineCurve, curve_of
from nearfree.derive.tune.replayed import Cost, Trace, tokens_per_second

FORM = 2
"""Version of the choice. From 2 on settings alike on one kind of prompts rank by all of them."""
WORTH = 0.02
"""The least relative gain of another number of threads or way to store weights: less is noise."""


class Ranked(Struct, frozen=True, kw_only=True):
    """A setting with its predicted tokens per second."""

    drafting: Drafting
    tokens_s: float


class Choice(Struct, frozen=True, kw_only=True):
    """The chosen setting, its neighbours, and all candidate settings, the best first."""

    chosen: Ranked
    none: Ranked
    """No drafts, on the threads and with the storage at which that is fastest."""
    neighbours: tuple[Drafting, ...]
    ranked: tuple[Ranked, ...]
    cut: Ranked | None
    """The best setting whose drafts are cut to tile edges, which no engine has an option for."""


def choose(
    traces: Sequence[Trace],
    cost: Cost,
    sources: tuple[Drafting, ...],
    others: Sequence[Trace] = (),
) -> Choice:
    """Return the setting of most predicted tokens per second, and the next smaller and larger K.

    Parameters
    ----------
    traces
        Those of the tuning prompts.
    cost
        The curves of every candidate number of threads and way to store weights.
    sources
        The candidate drafters.
    others
        Traces by which settings rank that take the same steps on `traces`.
    """
    bases = [curve.undrafted for curve in cost.curves]
    settings = [
        candidate.placed_as(base)
        for base in bases
        for candidate in candidates(sources, _measured_lengths(cost, base))
    ]
    ranked = _ranked(traces, settings, cost, others)
    none = _simplest_best([setting for setting in ranked if setting.drafting.drafter == "none"])
    best = _simplest_best(ranked)
    chosen = best if best.tokens_s > none.tokens_s else none
    return Choice(
        chosen=chosen,
        none=none,
        neighbours=neighbours(chosen.drafting, ranked),
        ranked=tuple(ranked),
        cut=_best_cut(traces, settings, cost),
    )


def choose_by_kind(
    traces: Sequence[Trace], cost: Cost, sources: tuple[Drafting, ...], form: int = FORM
) -> dict[str, Choice]:
    """Return the choice of `choose` for each kind of prompts by itself.

    There is none if all prompts are of one kind, or for a kind whose outputs all ended with their
    first token. Of a few prompts several lookups often take the same steps; then the one that is
    best on all prompts is chosen, in `form` 1 the first.
    """
    kinds = sorted({trace.kind for trace in traces})
    by_kind = {kind: [trace for trace in traces if trace.kind == kind] for kind in kinds}
    return {
        kind: choose(kind_traces, cost, sources, traces if form > 1 else ())
        for kind, kind_traces in by_kind.items()
        if len(kinds) > 1 and any(trace.tokens > 1 for trace in kind_traces)
    }


def fastest(curves: Sequence[EngineCurve]) -> Drafting:
    """Return the threads and storage of the least T(1), without drafts.

    Among those within WORTH of it, the engines' default wins: repacked, on fewest threads.
    """
    least = min(curve.at(1) for curve in curves)
    near = [curve.undrafted for curve in curves if curve.at(1) * (1 - WORTH) <= least]
    return min(near, key=lambda drafting: drafting.place)


def _measured_lengths(cost: Cost, run: Drafting) -> tuple[int, ...]:
    """Return the K whose 1 + K rows lie on the measured T(N)."""
    longest = curve_of(cost.curves, run).n[-1] - 1
    return tuple(k for k in LENGTHS if k <= longest)


def _ranked(
    traces: Sequence[Trace],
    settings: Iterable[Drafting],
    cost: Cost,
    others: Sequence[Trace] = (),
) -> list[Ranked]:
    """Return settings with their predicted speeds, the best first; ties rank by `others`."""
    speeds = {setting: tokens_per_second(traces, setting, cost) for setting in settings}
    counts = Counter(speeds.values())

    def order(setting: Drafting) -> tuple[float, float]:
        alike = others and counts[speeds[setting]] > 1
        return -speeds[setting], -tokens_per_second(others, setting, cost) if alike else 0.0

    return [
        Ranked(drafting=setting, tokens_s=speeds[setting]) for setting in sorted(speeds, key=order)
    ]


def _simplest_best(ranked: Sequence[Ranked]) -> Ranked:
    """Return the best drafter and K, on the simplest threads and storage within WORTH of the best.

    Simplest is repacked, as engines store weights by default, then fewest threads.
    """
    best = ranked[0]
    alike = [
        candidate
        for candidate in ranked
        if candidate.tokens_s >= best.tokens_s * (1 - WORTH)
        and candidate.drafting.placed_as(best.drafting) == best.drafting
    ]
    return min(alike, key=lambda candidate: candidate.drafting.place)


def neighbours(chosen: Drafting, ranked: Sequence[Ranked]) -> tuple[Drafting, ...]:
    """Return the settings of the same drafter with the next smaller and the next larger K.

    If no drafts are chosen, return the best two settings that draft.
    """
    settings = [setting.drafting for setting in ranked]
    if chosen.drafter == "none":
        return tuple([s for s in settings if s.beside(chosen) and s.drafter != "none"][:2])
    same = [s for s in settings if (s.kin, s.place) == (chosen.kin, chosen.place)]
    below = [setting for setting in same if setting.k < chosen.k]
    above = [setting for setting in same if setting.k > chosen.k]
    return (
        *sorted(below, key=lambda setting: -setting.k)[:1],
        *sorted(above, key=lambda setting: setting.k)[:1],
    )


def _best_cut(traces: Sequence[Trace], settings: Iterable[Drafting], cost: Cost) -> Ranked | None:
    """Return the best setting whose drafts end at the edges of its own curve.

    Drafters that remember are left out: how a cut changes their later drafts was not traced.
    """
    cuts = []
    for setting in settings:
        edges = curve_of(cost.curves, setting).edges
        if setting.drafter != "none" and not setting.remembers:
            cuts.append(
                structs.replace(setting, edges=tuple(n for n in edges if n <= 1 + setting.k))
            )
    return next(iter(_ranked(traces, cuts, cost)), None)
