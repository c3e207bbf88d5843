"""What numbers go back to, for the page's panel: runs, raw samples, and entries of the config."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from msgspec import structs

from nearfree.derive.tables.platforms import config_id
from nearfree.hardware.platforms import Platform
from nearfree.log.events import LatencyMeasured, RunFinished, RunStarted
from nearfree.log.evidence import Take
from nearfree.show.page.blocks import Block, block
from nearfree.show.page.runs import jobs

MOST_SAMPLES = 2_000_000
"""Characters of raw samples that a page may hold; the log has the others."""


def run_records(takes: Iterable[Take]) -> dict[str, dict[str, Any]]:
    """Return what each sealed take's run put on record, by the take's name."""
    return {str(take.name): _record(take) for take in takes}


def _record(take: Take) -> dict[str, Any]:
    data: RunStarted = take.started.data
    end = take.of(RunFinished)[-1].data
    kept = {name: value for name, value in structs.asdict(data).items() if name not in _LEFT_OUT}
    return kept | {
        "time": take.started.time,
        "outcome": take.seal.outcome,
        "wall_s": end.wall_s,
        "jobs": list(jobs(event.data for event in take.of(RunStarted))),
        "segments": [
            {"attempt": part.attempt, "events": part.events, "sha256": part.sha256}
            for part in take.seal.segments
        ],
    }


_LEFT_OUT = ("plan", "attempt", "scheduler")


def sample_blocks(takes: Iterable[Take]) -> Iterator[Block]:
    """Yield the raw samples of takes as blocks, as long as there is room for them.

    Parameters
    ----------
    takes
        Takes with their latency events.
    """
    room = MOST_SAMPLES
    for take in takes:
        visits: dict[str, dict[str, list[Any]]] = {}
        for event in take.of(LatencyMeasured):
            kept = visits.setdefault(event.source, {name: [] for name in ("line", *_VISIT)})
            kept["line"].append(int(event.id))
            for name in _VISIT:
                kept[name].append(getattr(event.data, name))
        if visits:
            made = block(f"samples:{take.name}", visits)
            room -= len(made.text)
            if room >= 0:
                yield made


_VISIT = ("n", "baseline", "round", "order", "wall_us", "process_us", "dirty", "cache", "timer",
          "launch", "load_1m", "forwards_a_sample")  # fmt: skip


def config_entries(
    datasheets: Mapping[str, Platform], model_files: Iterable[str]
) -> dict[str, dict[str, str]]:
    """Return what config files say, by the id that rows name it by."""
    sheets = {config_id(name, sheet): dict(sheet.sources) for name, sheet in datasheets.items()}
    told = "a Hugging Face config file, with the digest of the shape that is read from it"
    return sheets | {each: {"model file": told} for each in model_files}
