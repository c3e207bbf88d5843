"""T(N) of an engine's setting, between and at the N that were measured."""

from collections.abc import Iterable, Iterator
from itertools import chain

from msgspec import Struct, structs

from nearfree.core.boundary import median, median_interval
from nearfree.core.setting import Setting
from nearfree.errors import EvidenceError
from nearfree.log.curves import Curve, curve_samples


class EngineCurve(Struct, frozen=True, kw_only=True):
    """T(N) in microseconds at the N of a grid: medians over rounds, with 95 % intervals.

    Of a batch b each N is a sequence's, and a forward has b N rows.
    """

    setting: Setting
    timer: str
    n: tuple[int, ...]
    t_us: tuple[float, ...]
    low_us: tuple[float, ...]
    high_us: tuple[float, ...]
    few: tuple[tuple[int, float], ...] = ()
    """Of a batch: fewer rows than its sequences, of one alone, and T of each."""
    ids: tuple[str, ...] = ()
    """The events that it was made from."""

    @property
    def points(self) -> Iterator[tuple[int, float]]:
        """Rows of all sequences together, and T of each forward."""
        rows = (self.setting.batch * n for n in self.n)
        return chain(self.few, zip(rows, self.t_us, strict=True))

    def at(self, rows: int) -> float:
        """Return T of so many rows: what was measured there, else the line between both sides.

        The rows of all sequences of a batch count together, however they are split among them.
        T(N) has steps, at which a line is wrong by at most the step: the grid has both sides of
        those that tiles of 4, 8, 16 and 32 rows make.

        Raises
        ------
        EvidenceError
            The grid ends before, or begins after.
        """
        before = None
        for here, us in self.points:
            if here == rows:
                return us
            if before is not None and before[0] < rows < here:
                low, low_us = before
                return low_us + (us - low_us) * (rows - low) / (here - low)
            before = (here, us)
        raise EvidenceError(
            f"T(N) was measured from N = {self.n[0]} to {self.n[-1]}, and N = {rows} is asked",
            remedy="Measure it there",
        )

    @property
    def edges(self) -> tuple[int, ...]:
        """The N at which a row costs less than at every smaller N: where drafts end best."""
        best, found = float("inf"), []
        for n, us in zip(self.n, self.t_us, strict=True):
            if us / n < best:
                best = us / n
                found.append(n)
        return tuple(found)


def engine_curve(curve: Curve) -> EngineCurve:
    """Return a measured curve of an engine as the points that steps are priced by.

    A long forward of one thread may be disturbed at every visit: then its CPU time stands in, so
    that no N of the grid is missing.
    """
    samples = curve_samples(curve)
    points = {
        n: list((us or curve.visits[n].by_round(wall=False)).values())
        for n, us in sorted(samples.rounds.items())
    }
    intervals = [median_interval(values) for values in points.values()]
    return EngineCurve(
        setting=curve.setting,
        timer=samples.timer,
        n=tuple(points),
        t_us=tuple(map(median, points.values())),
        low_us=tuple(low for low, _ in intervals),
        high_us=tuple(high for _, high in intervals),
        ids=tuple(each for n in points for each in curve.ids[n]),
    )


def of_batch(curves: Iterable[EngineCurve], batch: int) -> list[EngineCurve]:
    """Return the curves of a batch, each with the fewer rows that one sequence was measured at."""
    known = list(curves)
    alone = {
        (each.setting.threads, each.setting.repack): each
        for each in known
        if each.setting.batch == 1
    }
    found = []
    for each in known:
        if each.setting.batch != batch:
            continue
        one = alone.get((each.setting.threads, each.setting.repack)) if batch > 1 else None
        if one is not None:
            few = tuple((n, us) for n, us in zip(one.n, one.t_us, strict=True) if n < batch)
            found.append(structs.replace(each, few=few, ids=(*one.ids, *each.ids)))
        else:
            found.append(each)
    return found


def curve_of(curves: Iterable[EngineCurve], *, threads: int, repack: bool) -> EngineCurve:
    """Return the curve of a number of threads and a way of storing weights.

    Raises
    ------
    EvidenceError
        None of them is.
    """
    for curve in curves:
        if (curve.setting.threads, bool(curve.setting.repack)) == (threads, repack):
            return curve
    raise EvidenceError(
        f"T(N) of {threads} threads, {'' if repack else 'not '}repacked, was not measured",
        remedy="Measure it first",
    )
