"""A second auditor that shares no line with the package: random cells, walked to raw events.

python tests/audit/independent.py RESULTS [CELLS] [SEED]

Tables are read as Parquet, segments as lines of JSON. Of each cell the row's ids are followed down
to events, whose lines must be intact; latencies and boundaries are computed anew from raw samples.
"""

import hashlib
import json
import math
import random
import re
import statistics
import sys
from collections import defaultdict
from functools import cache
from pathlib import Path
from typing import Any

import polars as pl

HASH = re.compile(rb'^(.*),"hash":"([0-9a-f]{64})"\}$', re.DOTALL)


class Root:
    """A results root, as plain files."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.tables: dict[tuple[str, str], pl.DataFrame] = {
            (path.parent.name, path.stem): pl.read_parquet(path)
            for path in sorted((folder / "tables").glob("*/*.parquet"))
        }
        self.rows = {
            row_id: (scope, name, place)
            for (scope, name), frame in self.tables.items()
            for place, row_id in enumerate(frame["row_id"])
        }

    def row(self, row_id: str) -> dict[str, Any]:
        """Return a row by its id; KeyError if no table has it."""
        scope, name, place = self.rows[row_id]
        return self.tables[scope, name].row(place, named=True)

    @cache  # noqa: B019
    def lines(self, segment: str) -> list[bytes]:
        """Return the lines of a segment."""
        return (self.folder / "events" / f"{segment}.jsonl").read_bytes().split(b"\n")

    def event(self, name: str) -> dict[str, Any]:
        """Return an event, after its hash, its link and its number were checked."""
        segment, _, number = name.partition("#")
        raw = self.lines(segment)[int(number) - 1]
        match = HASH.match(raw)
        assert match, f"{name} has no hash"
        assert hashlib.sha256(match[1]).hexdigest() == match[2].decode(), f"{name} was changed"
        event: dict[str, Any] = json.loads(raw)
        assert (event["source"], event["id"]) == (segment, number)
        before = self.lines(segment)[int(number) - 2] if int(number) > 1 else None
        if before is not None:
            assert event["prevhash"] == hashlib.sha256(before).hexdigest(), f"{name} is not linked"
        return event

    def leaves(self, row_id: str) -> set[str]:
        """Return the events and config entries below a row; each must exist."""
        events, todo, seen = set(), [row_id], set()
        while todo:
            cited = todo.pop()
            if cited in seen:
                continue
            seen.add(cited)
            if "#" in cited:
                self.event(cited)
                events.add(cited)
            elif cited.startswith("config/"):
                events.add(cited)
            else:
                row = self.row(cited)
                # A claim of which the log holds nothing to check says so, and rests on nothing.
                assert row["from_ids"] or row.get("checked") == 0, f"{cited} rests on nothing"
                todo += row["from_ids"]
        return events


def rounds_us(root: Root, point: dict[str, Any], *, wall: bool) -> dict[int, float]:
    """Return T(N) of a point by round, from the raw samples of its events."""
    latencies = {}
    for name in point["from_ids"]:
        data = root.event(name)["data"]
        assert data["n"] == point["n"]
        clean = [us for us, bad in zip(data["wall_us"], data["dirty"], strict=True) if not bad]
        samples = clean if wall else data["process_us"]
        if samples:
            latencies[data["round"]] = statistics.median(samples)
    return latencies


def curve_of(root: Root, point: dict[str, Any]) -> list[dict[str, Any]]:
    """Return all points of the curve that a point lies on."""
    scope, _, _ = root.rows[point["row_id"]]
    same = {name: point[name] for name in ("stream", "take", "plan8", "setting_key")}
    return root.tables[scope, "latency"].filter(**same).sort("n").to_dicts()


def check_latency(root: Root, point: dict[str, Any]) -> None:
    """Compute a point's latency and ratio from raw samples."""
    wall = point["timer"] != "process"
    own = rounds_us(root, point, wall=wall)
    assert math.isclose(point["latency_us"], statistics.median(own.values()), rel_tol=1e-12)
    assert point["rounds"] == len(own)
    (base,) = (p for p in curve_of(root, point) if p["n"] == p["baseline"])
    reference = rounds_us(root, base, wall=wall)
    if point["protocol"] != "paper":
        paired = [us / reference[r] for r, us in own.items() if r in reference]
        assert math.isclose(point["ratio"], statistics.median(paired), rel_tol=1e-12)


def check_boundary(root: Root, row: dict[str, Any]) -> None:
    """Compute a measured boundary from its points, and those from raw samples."""
    if row["origin"] not in {"measured", "simulated"}:
        (event,) = (root.event(name)["data"] for name in row["from_ids"])
        assert (event["n_max"], event["epsilon"]) == (row["n_max"], row["epsilon"])
        return
    points = [root.row(name) for name in row["from_ids"]]
    for point in points:
        check_latency(root, point)
    ratios = {p["n"]: p["ratio"] for p in points if p["n"] >= row["baseline"]}
    limit = 1 + row["epsilon"]
    assert row["n_max"] == max([row["baseline"], *(n for n, r in ratios.items() if r <= limit)])
    out = [n for n, r in ratios.items() if r > limit]
    inside = [n for n in ratios if not out or n < min(out)]
    assert row["first_exit"] == max([row["baseline"], *inside])
    assert row["next_n"] == min((n for n in ratios if n > row["n_max"]), default=None)


CHECKS = {"latency": check_latency, "boundaries": check_boundary}


def walk(root: Root, cells: int, seed: int) -> dict[str, int]:
    """Follow random cells to their events, equally many of each table; return counts."""
    chance = random.Random(seed)  # noqa: S311
    counts: dict[str, int] = defaultdict(int)
    there = [key for key, frame in root.tables.items() if frame.height]
    for number in range(cells):
        scope, name = there[number % len(there)] if cells >= len(there) else chance.choice(there)
        frame = root.tables[scope, name]
        row = frame.row(chance.randrange(frame.height), named=True)
        leaves = root.leaves(row["row_id"])
        assert leaves or row.get("checked") == 0
        CHECKS.get(name, lambda *_: None)(root, row)
        counts[name] += 1
        counts["events"] += len(leaves)
    return dict(counts)


def every_boundary(root: Root) -> int:
    """Compute every boundary of every scope again; return how many there are."""
    count = 0
    for (_, name), frame in root.tables.items():
        if name == "boundaries":
            for row in frame.iter_rows(named=True):
                check_boundary(root, row)
                count += 1
    return count


if __name__ == "__main__":
    ROOT = Root(Path(sys.argv[1]))
    print(walk(ROOT, int((sys.argv[2:] or ["20"])[0]), int((sys.argv[3:] or ["1"])[0])))
    print(every_boundary(ROOT), "boundaries computed anew")
