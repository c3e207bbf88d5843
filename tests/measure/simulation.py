"""The test of the test: what a protocol finds on curves whose boundary is known.

Nothing here enters a log. The protocol's own code runs on a simulated machine, whose forwards take
what a curve says, times noise, drift and spikes.
"""

import math
import random
from collections.abc import Callable, Sequence
from typing import Any, Literal

from msgspec import Struct
from nearfree.backends.adapters.kernel import Kernel
from nearfree.core.boundary import Boundary, boundary, interval_of, ratios
from nearfree.core.protocols import Adaptive
from nearfree.core.setting import Setting
from nearfree.hardware.clocks import Sample
from nearfree.log.events import DeviceState
from nearfree.measure.protocols import Search, run_adaptive
from nearfree.measure.visits import Bench, Point, no_progress

_SETTING = Setting(module="dense_ffn", backend="simulated", dtype="float32", d_model=1, d_ff=1)
_US = 1000.0
"""T(1) of every simulated curve."""
_GRID_STEP, _GRID_POINTS = 1.1, 59
Kind = Literal["staircase", "tails", "smooth"]
EDGED: tuple[Kind, ...] = ("staircase", "tails")
"""Curves whose boundary is an edge; on a smooth one it is a crossing at a small angle."""


class Noise(Struct, frozen=True, kw_only=True):
    """What disturbs a simulated machine."""

    sigma: float = 0.02
    """Standard deviation of a sample's logarithm."""
    drift: float = 0.2
    """Amplitude of a slow change of speed."""
    period_s: float = 0.7
    spike: float = 0.02
    """Probability that a forward takes up to three times as long."""


class Machine:
    """A kernel and its timer in one: forwards take simulated time."""

    name: Literal["cpu", "cuda_events"] = "cpu"
    launch: Literal["eager", "graph"] = "eager"
    forwards_a_sample = 1
    cache: Literal["cold", "warm"] = "cold"

    def __init__(self, curve: Callable[[int], float], noise: Noise, seed: int) -> None:
        self._curve = curve
        self._noise = noise
        self._random = random.Random(seed)  # noqa: S311 (noise, no secret)
        self._phase = self._random.uniform(0, 2 * math.pi)
        self._now_s = 0.0
        self.forwards = 0

    def _forward(self, n: int) -> float:
        noise, draw = self._noise, self._random
        speed = 1 + noise.drift * math.sin(2 * math.pi * self._now_s / noise.period_s + self._phase)
        took = _US * self._curve(n) * speed * math.exp(draw.gauss(0, noise.sigma))
        if draw.random() < noise.spike:
            took *= draw.uniform(1.2, 3.0)
        self._now_s += took / 1e6
        self.forwards += 1
        return took

    def warm(self, _kernel: Kernel, n: int) -> None:
        """Let the time of a forward pass."""
        self._forward(n)

    def sample(self, _kernel: Kernel, n: int) -> Sample:
        """Return the time of a forward."""
        took = self._forward(n)
        return Sample(wall_us=took, process_us=took, dirty=False)

    def check(self, wall_us: float) -> None:
        """Find every time long enough."""

    def state(self) -> DeviceState | None:
        """Return nothing."""
        return None


class Memory:
    """A journal that keeps nothing but what the protocol keeps itself."""

    events: Sequence[Any] = ()

    def append(self, _data: object, *, sync: bool = True) -> str:  # noqa: ARG002
        """Take an event."""
        return ""

    def sync(self) -> None:
        """Have nothing to write."""


class SearchRun(Struct, frozen=True, kw_only=True):
    """What one run found, and what is true of its curve over the same grid."""

    truth: int
    boundary: Boundary
    forwards: int

    @property
    def holds(self) -> bool:
        """Whether the interval holds the truth."""
        return self.boundary.low <= self.truth <= self.boundary.high

    @property
    def width(self) -> float:
        """The interval's ends, one over the other."""
        return self.boundary.high / self.boundary.low

    @property
    def wrong(self) -> bool:
        """Whether a decided verdict names an interval without the truth."""
        return self.boundary.verdict != "undecided" and not self.holds


def search(
    curve: Callable[[int], float],
    grid: Sequence[int],
    protocol: Adaptive,
    *,
    noise: Noise,
    seed: int,
) -> SearchRun:
    """Run the adaptive protocol on a simulated machine, T(N) = `curve` times T(1)."""
    machine = Machine(curve, noise, seed)
    points = [Point(_SETTING, grid[0], n, machine) for n in grid]  # type: ignore[arg-type]
    bench = Bench(Memory(), machine, protocol, no_progress)  # type: ignore[arg-type]
    run_adaptive(bench, points, protocol)
    held = Search(grid[0], {}, [])
    for visit in bench.history:
        held.add(visit)
    result = boundary(
        ratios(held.curve, grid[0], interval_of(protocol)),
        protocol.epsilon,
        grid[0],
        protocol.width,
    )
    limit = (1 + protocol.epsilon) * curve(grid[0])
    truth = max(n for n in grid if curve(n) <= limit)
    return SearchRun(truth=truth, boundary=result, forwards=machine.forwards)


def staircase(tile: int, step: float, slope: float) -> Callable[[int], float]:
    """Return a curve that jumps by `step` after each `tile` positions and rises by `slope`."""
    return lambda n: 1 + step * ((n - 1) // tile) + slope * (n - 1)


def tails(tile: int, full: float, tail: float) -> Callable[[int], float]:
    """Return a curve that is not monotone: a tile of one row takes a slow path of its own."""

    def curve(n: int) -> float:
        full_tiles, rest = divmod(n - 1, tile)
        return 1 + full * full_tiles + (tail if rest == 0 and full_tiles else 0.12 * rest / tile)

    return curve


def some_curve(draw: random.Random, kind: Kind) -> tuple[Callable[[int], float], list[int]]:
    """Return a random curve of a kind and a grid with edges that may be wrong.

    The grid rises by a tenth at most and holds, as probes, edges and the N after them: half of the
    time those of the curve, half of the time others.
    """
    tile = draw.choice((8, 16, 32, 48, 64))
    edge = tile if draw.random() < 0.5 else draw.choice((5, 12, 24, 40, 72, 100))
    if kind == "staircase":
        curve = staircase(tile, draw.uniform(0.1, 1.0), draw.uniform(0, 0.1 / tile))
    elif kind == "tails":
        curve = tails(tile, draw.uniform(0.35, 0.9), draw.uniform(0.4, 0.9))
    else:
        knee = draw.uniform(4, 100)
        curve = staircase(1, 0.2 / knee, 0)
    grid = {round(_GRID_STEP**power) for power in range(_GRID_POINTS)}
    for k in (1, 2):
        grid |= {k * edge, k * edge + 1}
    return curve, sorted(grid)


def simulate(
    runs: int, protocol: Adaptive, noise: Noise, *, kinds: Sequence[Kind] = EDGED, seed: int = 0
) -> list[SearchRun]:
    """Return what a protocol finds on that many random curves of the given kinds, in turn."""
    results = []
    for number in range(runs):
        draw = random.Random(f"{seed}/{number}")  # noqa: S311 (curves, no secret)
        curve, grid = some_curve(draw, kinds[number % len(kinds)])
        results.append(search(curve, grid, protocol, noise=noise, seed=draw.getrandbits(32)))
    return results
