"""T(N) of an engine's setting, between and at the N that were measured."""

from collections.abc import Iterable
from itertools import pairwise

from msgspec import Struct

from nearfree.core.boundary import median, median_interval
from nearfree.core.setting import Setting
from nearfree.errors import EvidenceError
from nearfree.log.curves import Curve, curve_samples


class EngineCurve(Struct, frozen=True, kw_only=True):
    """T(N) in microseconds at the N of a grid: medians over rounds, with 95 % intervals."""

    setting: Setting
    timer: str
    n: tuple[int, ...]
    t_us: tuple[float, ...]
    low_us: tuple[float, ...]
    high_us: tuple[float, ...]
    ids: tuple[str, ...] = ()
    """The events that it was made from."""

    def at(self, rows: int) -> float:
        """Return T of so many rows: what was measured there, else the line between both sides.

        T(N) has steps, at which a line is wrong by at most the step: the grid has both sides of
        those that tiles of 4, 8, 16 and 32 rows make.

        Raises
        ------
        EvidenceError
            The grid ends before, or begins after.
        """
        if rows in self.n:
            return self.t_us[self.n.index(rows)]
        for (low, low_us), (high, high_us) in pairwise(zip(self.n, self.t_us, strict=True)):
            if low < rows < high:
                return low_us + (high_us - low_us) * (rows - low) / (high - low)
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
