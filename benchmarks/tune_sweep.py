"""Compare the choice of `nearfree tune` with a full sweep, for each kind of prompts.

    python benchmarks/tune_sweep.py RESULTS PROMPTS MODEL [TAKE]

RESULTS is the root of a sealed tuning; PROMPTS and MODEL are the files that the tuning was given.
The sweep runs every K of 0, 1, 2, 3, 4, 6, 8, 12, 16, 32 with each candidate lookup, and the
setting that the tuned-on prompts choose for each kind, three times in turn, on the held-out
prompts.

For each kind it prints the choice, and the choice's tokens per second as a share of those of the
best K of its own lookup and of the best of all settings, both as measured and as replayed over the
same outputs. It also prints the error of each predicted gain over no drafts. The best of many noisy
settings is partly the luckiest; so the choice is also compared, in each repeat, with the best of
the two other repeats. The sweep's take stays in the log, and a second call reads it.
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
from nearfree.derive.tune.recorded import RecordedProof, is_proof, read_proof
from nearfree.derive.tune.replayed import tokens_per_second
from nearfree.gguf.reader import weights_sha256
from nearfree.log.events import DecodeMeasured, Event
from nearfree.log.evidence import read_scope, read_take
from nearfree.log.names import Layout
from nearfree.log.take import take_name
from nearfree.measure.decodes import measure_decodes

SCOPE, REPEATS = "cpu", 3
SWEEP = (1, 2, 3, 4, 6, 8, 12, 16, 32)
"""K of the sweep, besides no drafts."""


def newest_proof(layout: Layout) -> RecordedProof:
    """Return the newest proof of a root."""
    takes = read_scope(layout, SCOPE)
    proofs = [take for take in takes if is_proof(take)]
    others = {str(take.name): take for take in takes}
    return read_proof(max(proofs, key=lambda take: take.order), others)


def chosen_setting(tuning: RecordedProof, kind: str) -> Drafting:
    """Return the setting that the tuned-on prompts of a kind choose; those of all for `all`."""
    answer = tuning.kinds[kind].choice if kind in tuning.kinds else tuning.choice
    return answer.chosen.drafting


def sweep_plan(tuning: RecordedProof) -> DecodePlan:
    """Return the plan of the sweep.

    Without drafts it runs on the threads and storage that are fastest so, with drafts on those that
    the choice for all prompts drafts on, else the choice for a kind.
    """
    none = tuning.choice.none.drafting
    kinds = sorted({trace.kind for trace in tuning.traces})
    chosen = [chosen_setting(tuning, kind) for kind in ("all", *kinds)]
    where = next((setting for setting in chosen if setting.k), none)
    drafts = (
        setting for setting in (*candidates(tuning.plan.weighed, SWEEP), *chosen) if setting.k
    )
    runs = [
        none,
        *(setting.placed_as(where) for setting in drafts),
    ]
    return structs.replace(
        tuning.plan, runs=tuple(dict.fromkeys(runs)), weighed=(), default=None, made_from=(),
        repeats=REPEATS,
    )  # fmt: skip


def report_lines(tuning: RecordedProof, events: list[Event]) -> Iterator[str]:
    """Yield the report of the sweep: each kind of prompts, then all prompts together."""
    clock = seconds_of(events)
    kinds = sorted({event.data.kind for event in events})
    for kind in [*kinds, "all"]:
        runs = by_setting([event for event in events if kind in (event.data.kind, "all")])
        speeds_by_setting = {
            setting: by_repeat
            for setting, decodes in runs.items()
            if (by_repeat := speeds(decodes, clock))
        }
        speed = {
            setting: fmean(by_repeat.values()) for setting, by_repeat in speeds_by_setting.items()
        }
        traces = [t for t in tuning.traces if t.held_out and kind in (t.kind, "all")]
        predicted = {setting: tokens_per_second(traces, setting, tuning.cost) for setting in runs}
        chosen = chosen_setting(tuning, kind)
        none = next(setting for setting in runs if setting.drafter == "none")
        choice = next(setting for setting in runs if drafts_alike(setting, chosen))
        best = max(speed, key=speed.__getitem__)
        best_predicted = max(predicted, key=predicted.__getitem__)
        best_k = max(
            (setting for setting in speed if setting.k == 0 or setting.kin == chosen.kin),
            key=speed.__getitem__,
        )
        yield (
            f"{kind}: chosen {chosen.label} K = {chosen.k}, which reaches "
            f"{speed[choice] / speed[best_k]:.2f} of the best K of its lookup, {best_k.k}; "
            f"best {best.label} K = {best.k} ({speed[best]:.1f} tokens/s of {clock} time, "
            f"{speed[best] / speed[none]:.2f} x none); "
            f"the choice reaches {speed[choice] / speed[best]:.2f} of it, the best of "
            f"{len(runs)} noisy settings, {held_out_share(speeds_by_setting, choice):.2f} of the "
            "best of two repeats in the third, and by replay "
            f"{predicted[choice] / predicted[best_predicted]:.2f} of the best by replay, "
            f"{best_predicted.label} K = {best_predicted.k}"
        )
        for setting, decodes in runs.items():
            predicted_gain = predicted[setting] / predicted[none]
            measured = gain(decodes, runs[none], clock)
            yield (
                f"  {setting.label} K = {setting.k}: predicted {predicted_gain:.2f} x none, "
                f"measured {measured.value:.2f} [{measured.low:.2f}, {measured.high:.2f}], off by "
                f"{predicted_gain / measured.value - 1:+.0%}"
            )


def held_out_share(
    speeds_by_setting: Mapping[Drafting, Mapping[int, float]], chosen: Drafting
) -> float:
    """Return the mean over repeats of a choice's speed over that of the best of other repeats.

    In each repeat the choice is compared with the setting that is fastest in the other repeats.

    Parameters
    ----------
    speeds_by_setting
        Tokens per second by repeat, of each setting.
    chosen
        The choice, one of the settings.
    """
    shares = []
    for repeat, speed in speeds_by_setting[chosen].items():
        means = {
            setting: fmean(value for other, value in by_repeat.items() if other != repeat)
            for setting, by_repeat in speeds_by_setting.items()
        }
        best = max(means, key=means.__getitem__)
        shares.append(speed / speeds_by_setting[best][repeat])
    return fmean(shares)


def drafts_alike(one: Drafting, other: Drafting) -> bool:
    """Return whether two settings have the same drafter and K."""
    return (one.source, one.k) == (other.source, other.k)


def main(results: str, prompts: str, model: str, take: str = "1") -> None:
    """Run the sweep if it is not sealed, and print its report."""
    layout, path = Layout(Path(results)), Path(model)
    tuning = newest_proof(layout)
    plan = sweep_plan(tuning)
    held_out = {part.sha256 for part in plan.prompts}
    prompts_ = [prompt for prompt in read_prompts(Path(prompts)) if prompt.part.sha256 in held_out]
    stream = f"{tuning.proof.name.stream.removesuffix('_tune')[:58]}_sweep"
    measure_decodes(
        layout, SCOPE, stream, int(take), plan, prompts=prompts_,
        files={weights_sha256(path): path},
    )  # fmt: skip
    sweep = read_take(layout, take_name(SCOPE, stream, int(take), plan))
    for line in report_lines(tuning, sweep.events_of(DecodeMeasured)):
        print(line)


if __name__ == "__main__":
    main(*sys.argv[1:])
