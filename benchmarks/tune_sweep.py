"""A full sweep by hand beside what `nearfree tune` chose, of each kind of prompts apart.

    python benchmarks/tune_sweep.py RESULTS PROMPTS MODEL [TAKE]

RESULTS is the root of a tuning that was sealed, PROMPTS and MODEL the files that it was given.
Every K of 0, 1, 2, 3, 4, 6, 8, 12, 16, 32 runs with each lookup that was weighed, and so does what
the other half chooses for each kind, three times in turn, on the prompts that were held out. For
each kind it prints what was chosen, what it takes of the tokens a second of the best K of its own
lookup, and of the best of all settings, as measured and as replayed over the same outputs, and how
far each prediction, over none, was off. The best of many noisy settings is partly the luckiest:
what the choice takes of it is also told in each repeat of the best of the two others. The sweep's
take stays in the log: a second call reads it.
"""

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import fmean

from msgspec import structs
from nearfree.config.prompts import read_prompts
from nearfree.core.candidates import candidates
from nearfree.core.drafting import Drafting
from nearfree.core.plan import DecodePlan
from nearfree.derive.tune.proof import by_setting, gain, seconds_of, speeds
from nearfree.derive.tune.recorded import Recorded, is_proof, recorded
from nearfree.derive.tune.replayed import tokens_a_second
from nearfree.gguf.reader import weights_sha256
from nearfree.log.events import DecodeMeasured, Event
from nearfree.log.evidence import read_scope, read_take
from nearfree.log.names import Layout
from nearfree.log.take import take_name
from nearfree.measure.decodes import measure_decodes

SCOPE, REPEATS = "cpu", 3
SWEEP = (1, 2, 3, 4, 6, 8, 12, 16, 32)
"""K of the sweep by hand, besides none."""


def newest(layout: Layout) -> Recorded:
    """Return the newest proof of a root."""
    takes = read_scope(layout, SCOPE)
    proofs = [take for take in takes if is_proof(take)]
    others = {str(take.name): take for take in takes}
    return recorded(max(proofs, key=lambda take: take.order), others)


def chosen_of(said: Recorded, kind: str) -> Drafting:
    """Return what the prompts of a kind that are tuned on choose; of all where it is `all`."""
    best = said.kinds[kind].choice if kind in said.kinds else said.choice
    return best.chosen.drafting


def sweep_plan(said: Recorded) -> DecodePlan:
    """Return the plan of the sweep, on the threads and storage on which none is fastest."""
    none = said.choice.none.drafting
    kinds = [*sorted({trace.kind for trace in said.traces}), "all"]
    runs = [
        structs.replace(each, threads=none.threads, repack=none.repack)
        for each in [
            *candidates(said.plan.weighed, SWEEP),
            *(chosen_of(said, kind) for kind in kinds),
        ]
    ]
    return structs.replace(
        said.plan, runs=tuple(dict.fromkeys(runs)), weighed=(), default=None, made_from=(),
        repeats=REPEATS,
    )  # fmt: skip


def lines(said: Recorded, events: list[Event]) -> Iterator[str]:
    """Yield what the sweep says of each kind of prompts, and of all."""
    seconds = seconds_of(events)
    kinds = sorted({event.data.kind for event in events})
    for kind in [*kinds, "all"]:
        mine = [event for event in events if kind in (event.data.kind, "all")]
        runs = by_setting(mine)
        each_s = {each: found for each, ran in runs.items() if (found := speeds(ran, seconds))}
        tokens_s = {each: fmean(found.values()) for each, found in each_s.items()}
        held = [t for t in said.traces if t.held_out and kind in (t.kind, "all")]
        chosen = chosen_of(said, kind)
        best = max(tokens_s, key=lambda each: tokens_s[each])
        none = next(each for each in runs if each.drafter == "none")
        alike = next(each for each in runs if same(each, chosen))
        own = max(
            (e for e in tokens_s if e.k == 0 or e.kin == chosen.kin), key=tokens_s.__getitem__
        )
        predicted_s = {each: tokens_a_second(held, each, said.cost) for each in runs}
        foreseen = max(predicted_s, key=lambda each: predicted_s[each])
        yield (
            f"{kind}: chosen {chosen.label} K = {chosen.k}, which reaches "
            f"{tokens_s[alike] / tokens_s[own]:.2f} of the best K of its lookup, {own.k}; "
            f"best {best.label} K = {best.k} "
            f"({tokens_s[best]:.1f} tokens/s of {seconds} time, "
            f"{tokens_s[best] / tokens_s[none]:.2f} x none); "
            f"the choice reaches {tokens_s[alike] / tokens_s[best]:.2f} of it, the best of "
            f"{len(runs)} noisy ones, {apart(each_s, alike):.2f} of the best of two repeats in the "
            "third, and by replay "
            f"{predicted_s[alike] / predicted_s[foreseen]:.2f} of the best by replay, "
            f"{foreseen.label} K = {foreseen.k}"
        )
        for each in runs:
            predicted = predicted_s[each] / predicted_s[none]
            real = gain(runs[each], runs[none], seconds)
            yield (
                f"  {each.label} K = {each.k}: predicted {predicted:.2f} x none, measured "
                f"{real.value:.2f} [{real.low:.2f}, {real.high:.2f}], off by "
                f"{predicted / real.value - 1:+.0%}"
            )


def apart(each_s: Mapping[Drafting, Mapping[int, float]], chosen: Drafting) -> float:
    """Return what a choice takes, in each repeat, of the setting that is best in the others.

    Parameters
    ----------
    each_s
        Tokens a second by repeat, of each setting.
    chosen
        One of them.
    """
    found = []
    for repeat in each_s[chosen]:
        others = {
            each: fmean(value for at, value in ran.items() if at != repeat)
            for each, ran in each_s.items()
        }
        best = max(others, key=lambda each: others[each])
        found.append(each_s[chosen][repeat] / each_s[best][repeat])
    return fmean(found)


def same(one: Drafting, other: Drafting) -> bool:
    """Return whether two settings draft alike."""
    return (one.source, one.k) == (other.source, other.k)


def main(results: str, prompts: str, model: str, take: str = "1") -> None:
    """Run the sweep if it is not sealed, and print what it says."""
    layout, path = Layout(Path(results)), Path(model)
    said = newest(layout)
    plan = sweep_plan(said)
    held = {part.sha256 for part in plan.prompts}
    texts = [each for each in read_prompts(Path(prompts)) if each.part.sha256 in held]
    stream = f"{said.proof.name.stream.removesuffix('_tune')[:58]}_sweep"
    measure_decodes(
        layout, SCOPE, stream, int(take), plan, prompts=texts,
        files={weights_sha256(path): path},
    )  # fmt: skip
    found = read_take(layout, take_name(SCOPE, stream, int(take), plan))
    for line in lines(said, found.of(DecodeMeasured)):
        print(line)


if __name__ == "__main__":
    main(*sys.argv[1:])
