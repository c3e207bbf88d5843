"""The text of `nearfree measure --engine`: T(N) of an engine, and where its time goes."""

from collections.abc import Iterable, Iterator

from nearfree.core.boundary import Ratio, boundary, median
from nearfree.core.label import label
from nearfree.hardware.handover import APART_NS
from nearfree.log.curves import Curve, curve_samples, samples_ratios
from nearfree.log.events import DecodeMeasured, EngineLoaded, LatencyMeasured, SharesMeasured
from nearfree.log.evidence import Take
from nearfree.show.text.forecast import columns
from nearfree.units import BYTES_PER_GB, US_PER_MS

_AXES = ("threads", "batch", "context")


def engine_text(take: Take, curves: list[Curve], epsilon: float) -> Iterator[str]:
    """Yield an engine's release and file, then T(N), N_max and the modules' shares per setting."""
    loaded = next((event.data for event in take.events_of(EngineLoaded)), None)
    if loaded is not None:
        yield (
            f"{loaded.model} ({loaded.file_type}) in {loaded.engine} {loaded.release}, "
            f"{loaded.weights_bytes / BYTES_PER_GB:.2f} GB; {_cpu(loaded)}"
        )
    for curve in curves:
        yield ""
        yield from _curve(curve, epsilon)
        yield from _shares(take, curve)
    yield from handover_text([take])


def _cpu(loaded: EngineLoaded) -> str:
    """Return the engine's reported number formats, else the file of ggml's CPU variant."""
    precisions = [part for part in loaded.system_info.split(" | ") if "_PRECISION" in part]
    if precisions:
        return ", ".join(precisions)
    names = [name for name in loaded.library_sha256 if name.startswith("libggml-cpu")]
    return ", ".join(names) or "one library for all CPUs"


def _curve(curve: Curve, epsilon: float) -> Iterator[str]:
    samples = curve_samples(curve)
    ratios = samples_ratios(samples, curve.first.protocol)
    exit_ = boundary(ratios, epsilon, curve.first.baseline)
    repacked = "repacked" if curve.setting.repack else "not repacked"
    named = label({name: getattr(curve.setting, name) for name in _AXES}, _AXES)
    sign = "≥" if exit_.next_n is None else "="
    n_max = f"N_max {sign} {exit_.last_pass} at {epsilon:.0%}"
    yield f"{named}, {repacked}: {n_max}, measured in {samples.timer} time"
    rows: list[list[str]] = [["N", "T(N) ms", "T(N)/T(1)", "", "ms per position"]]
    by_n = {ratio.n: ratio for ratio in ratios}
    for n, rounds in sorted(samples.rounds.items()):
        rows.append(_row(n, list(rounds.values()), by_n.get(n)))
    yield from columns(rows)


def _row(n: int, latencies_us: list[float], ratio: Ratio | None) -> list[str]:
    if ratio is None:
        return [str(n), "-", "-", "no clean sample paired with N = 1", "-"]
    ms = median(latencies_us) / US_PER_MS
    interval = f"[{ratio.low:.2f}, {ratio.high:.2f}]"
    return [str(n), f"{ms:.2f}", f"{ratio.value:.2f}", interval, f"{ms / n:.2f}"]


def _shares(take: Take, curve: Curve) -> Iterator[str]:
    by_n: dict[int, list[dict[str, float]]] = {}
    for event in take.events_of(SharesMeasured):
        if event.data.setting == curve.setting:
            by_n.setdefault(event.data.n, []).append(event.data.part_us)
    if not by_n:
        return
    yield "  share of time by module, each operation timed in a separate pass:"
    roles = list(dict.fromkeys(role for parts in by_n.values() for part in parts for role in part))
    rows = [["N", *roles]]
    for n, parts in sorted(by_n.items()):
        times = [median([part.get(role, 0.0) for part in parts]) for role in roles]
        rows.append([str(n), *(f"{part_us / sum(times):.0%}" for part_us in times)])
    yield from columns(rows, indent=4)


def handover_text(takes: Iterable[Take]) -> Iterator[str]:
    """Yield in how many forwards and decodes a host moved this machine's CPUs; nothing if none."""
    forwards: list[float | None] = []
    decodes: list[float | None] = []
    for take in takes:
        for event in take.events_of(LatencyMeasured):
            forwards += event.data.handover_ns or ()
        decodes += [event.data.handover_ns for event in take.events_of(DecodeMeasured)]
    known_ns = [trip_ns for trip_ns in (*forwards, *decodes) if trip_ns is not None]
    if not known_ns:
        return
    shortest_ns = min(known_ns)
    counts = [
        f"{apart} of {len(trips_ns)} {name}"
        for name, trips_ns in (("forwards", forwards), ("decodes", decodes))
        if (apart := sum((trip_ns or 0) > shortest_ns + APART_NS for trip_ns in trips_ns))
    ]
    if counts:
        close_ns = median([trip for trip in known_ns if trip <= shortest_ns + APART_NS])
        yield (
            f"this machine's host moved its CPUs: a value took {close_ns:.0f} ns from one to "
            f"another and back, but up to {max(known_ns):.0f} in {' and '.join(counts)}"
        )
