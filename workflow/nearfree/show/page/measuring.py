"""The report's sections on measuring: its cost, the adapters that have run, changes of kernels."""

from collections.abc import Iterable
from itertools import pairwise

import polars as pl

from nearfree.backends.adapters.kernel import ADAPTERS
from nearfree.core.label import subject
from nearfree.log.events import RunFinished
from nearfree.log.evidence import Take
from nearfree.measure.adapter_runs import AdapterRuns, never_run
from nearfree.show.page.sections import Cell, Grid, cell


def cost(takes: Iterable[Take]) -> Grid:
    """Return the seconds of each measuring take, and how many of them were outside of forwards."""
    rows = []
    for take in takes:
        end = take.of(RunFinished)[-1].data
        if end.timed_s is None:
            continue
        outside = max(end.wall_s - end.timed_s, 0.0)
        rows.append(
            (
                Cell(str(take.name)),
                *(
                    cell(text, take.of(RunFinished)[-1].event_id)
                    for text in (
                        f"{end.wall_s:.1f}",
                        f"{end.timed_s:.1f}",
                        f"{outside / end.wall_s:.1%}" if end.wall_s else "-",
                    )
                ),
            )
        )
    return Grid(
        ("take", "seconds, last attempt", "in forwards and warm-up", "outside"), tuple(rows)
    )


def adapters(runs: AdapterRuns) -> Grid:
    """Return every adapter and whether the log holds a sealed run of it, by kind of device."""
    missing = {(adapter.module, adapter.backend, device) for adapter, device in never_run(runs)}
    rows = []
    for adapter in ADAPTERS:
        devices = [
            f"{device}: {'never run' if (*key, device) in missing else 'run'}"
            for key in [(adapter.module, adapter.backend)]
            for device in adapter.devices
        ]
        rows.append(
            (
                Cell(adapter.module),
                Cell(adapter.backend),
                Cell(f"envs/{adapter.environment}.lock"),
                Cell("; ".join(devices)),
            )
        )
    return Grid(("module", "backend", "environment", "sealed runs"), tuple(rows))


def cliffs(work: pl.DataFrame) -> Grid:
    """Return each N at which a setting's forward runs other kernels than at the N before it."""
    rows = []
    for group in work.filter("newest").partition_by("stream", "setting_key", "source"):
        for before, after in pairwise(group.sort("n").to_dicts()):
            old, new = (row["kernels"].split("; ") for row in (before, after))
            if set(old) != set(new):
                rows.append(
                    (
                        Cell(f"{after['stream']}, {after['backend']}"),
                        Cell(subject(after)),
                        cell(after["n"], after["row_id"]),
                        Cell(", ".join(name for name in old if name not in new) or "-"),
                        Cell(", ".join(name for name in new if name not in old) or "-"),
                    )
                )
    return Grid(("study", "setting", "from N", "no longer", "now"), tuple(rows))
