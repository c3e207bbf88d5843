"""T(N) of an engine's setting, at the measured N and interpolated between them."""

from collections.abc import Iterable, Iterator
from itertools import chain

from msgspec import Struct, structs

from nearfree.core.boundary import median, median_interval
from nearfree.core.drafting import Drafting
from nearfree.core.setting import Setting
from nearfree.errors import EvidenceError
from nearfree.log.curves import Curve, curve_samples


class EngineCurve(Struct, frozen=True, kw_only=True):
    """T(N) in microseconds at the N of a grid: medians over rounds, with 95 % intervals.

    N counts the positions per sequence: with batch b a forward has b N rows.
    """

    setting: Setting
    timer: str
    n: tuple[int, ...]
    t_us: tuple[float, ...]
    low_us: tuple[float, ...]
    high_us: tuple[float, ...]
    few: tuple[tuple[int, float], ...] = ()
    """With a batch: (rows, T) for fewer rows than sequences, measured on a single sequence."""
    change_us: float = 0.0
    """What a forward takes longer right after one over another N: OpenVINO prepares it anew."""
    ids: tuple[str, ...] = ()
    """The events that the curve was made from."""

    @property
    def undrafted(self) -> Drafting:
        """No drafts, on the curve's threads, storage and cache."""
        return Drafting(
            threads=self.setting.threads or 1,
            repack=bool(self.setting.repack),
            kv_dtype=self.setting.kv_dtype,
        )

    @property
    def points(self) -> Iterator[tuple[int, float]]:
        """(rows, T) of each forward, with the rows of all sequences together."""
        rows = (self.setting.batch * n for n in self.n)
        return chain(self.few, zip(rows, self.t_us, strict=True))

    def at(self, rows: int) -> float:
        """Return T of a forward of `rows` rows: as measured, else interpolated linearly.

        The rows of all sequences of a batch are summed, however they are split among sequences.
        Where T(N) has a step, interpolation errs by at most that step: the grid has both sides of
        the steps that tiles of 4, 8, 16 and 32 rows make. Raises EvidenceError if `rows` lies
        outside of the grid.
        """
        previous = None
        for n, us in self.points:
            if n == rows:
                return us
            if previous is not None and previous[0] < rows < n:
                low, low_us = previous
                return low_us + (us - low_us) * (rows - low) / (n - low)
            previous = (n, us)
        raise EvidenceError(
            f"T(N) was measured from N = {self.n[0]} to {self.n[-1]}, and N = {rows} is asked",
            remedy="Measure it there",
        )

    @property
    def edges(self) -> tuple[int, ...]:
        """The N at which a row costs less than at every smaller N: the best ends of drafts."""
        best, edges = float("inf"), []
        for n, us in zip(self.n, self.t_us, strict=True):
            if us / n < best:
                best = us / n
                edges.append(n)
        return tuple(edges)


def engine_curve(curve: Curve) -> EngineCurve:
    """Return the medians and intervals of an engine's measured curve.

    If a long forward was disturbed at every visit, all its samples count, so that no N of the grid
    is missing.
    """
    samples = curve_samples(curve)
    points = {
        n: list((us or curve.visits[n].by_round(clean=False)).values())
        for n, us in sorted(samples.rounds.items())
    }
    intervals = [median_interval(values) for values in points.values()]
    extra_us = [us for visits in curve.visits.values() for us in visits.extra_us]
    return EngineCurve(
        setting=curve.setting,
        timer=samples.timer,
        n=tuple(points),
        t_us=tuple(map(median, points.values())),
        low_us=tuple(low for low, _ in intervals),
        high_us=tuple(high for _, high in intervals),
        change_us=max(0.0, median(extra_us)) if extra_us else 0.0,
        ids=tuple(event_id for n in points for event_id in curve.ids[n]),
    )


def of_batch(curves: Iterable[EngineCurve], batch: int) -> list[EngineCurve]:
    """Return the curves of a batch, extended to fewer rows than sequences.

    Those points come from the curve of a single sequence with the same threads, storage and cache.
    """
    measured = list(curves)
    singles = {curve.undrafted: curve for curve in measured if curve.setting.batch == 1}
    batched = []
    for curve in measured:
        if curve.setting.batch != batch:
            continue
        single = singles.get(curve.undrafted) if batch > 1 else None
        if single is not None:
            few = tuple((n, us) for n, us in zip(single.n, single.t_us, strict=True) if n < batch)
            batched.append(structs.replace(curve, few=few, ids=(*single.ids, *curve.ids)))
        else:
            batched.append(curve)
    return batched


def curve_of(curves: Iterable[EngineCurve], drafting: Drafting) -> EngineCurve:
    """Return the curve of a setting's threads, storage and cache.

    Raises EvidenceError if no curve has them.
    """
    for curve in curves:
        if curve.undrafted.place == drafting.place:
            return curve
    cache = f", with a cache in {drafting.kv_dtype}" if drafting.kv_dtype else ""
    raise EvidenceError(
        f"T(N) of {drafting.threads} threads, {'' if drafting.repack else 'not '}repacked{cache}, "
        "was not measured",
        remedy="Measure it first",
    )
