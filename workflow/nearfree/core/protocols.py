"""Timing protocols: each struct holds every parameter that decides which samples are taken."""

from typing import Annotated, ClassVar, Literal

from msgspec import Meta, Struct

MOST = 2**63 - 1
"""The largest whole number that a table can hold."""
Positive = Annotated[int, Meta(ge=1, le=MOST)]
Natural = Annotated[int, Meta(ge=0, le=MOST)]
Launch = Literal["eager", "graph"]
EAGER: Launch = "eager"
"""Kernels are launched one by one, not by a CUDA graph."""


class Sampling(
    Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False, tag_field="name"
):
    """Parameters of all protocols: a visit is `warmup` untimed and `forwards` timed forwards.

    A disturbed timed forward is recorded as dirty and repeated, up to `retries` times per visit.
    `weight_copies` copies of weights and keys are used in turn, so that they are read from memory.
    One copy gives a hot cache; 0, on a CPU, means as many copies as a cold cache needs. `threads`
    applies to CPUs, `launch` and `graph_forwards` to GPUs: with `graph` a sample is one replay of a
    graph of `graph_forwards` forwards, captured per N.
    """

    rounds: Annotated[int, Meta(ge=3)] = 20
    warmup: Natural = 1
    forwards: Positive = 3
    retries: Natural = 3
    weight_copies: Natural = 2
    threads: Annotated[int, Meta(ge=1, le=4096)] = 1
    seed: Annotated[int, Meta(ge=0, lt=2**32)] = 0
    pairs_rounds: ClassVar[bool] = True
    """Whether a round holds T(N) and T(baseline) close in time, so that their ratio is paired."""
    chooses_points: ClassVar[bool] = False
    """Whether its paired rounds visit some points only."""
    thins: ClassVar[bool] = False
    """Whether its rounds leave points out."""

    @property
    def look_confidence(self) -> float | None:
        """The confidence of an interval at each look at the data; None where rounds are fixed.

        Each look gets an equal share of the error (Bonferroni), so that all together keep the
        protocol's confidence under any stopping rule.
        """
        return None

    def takes_part(self, n: int, baseline: int, number: int) -> bool:  # noqa: ARG002
        """Return whether round `number`, from 0, visits N."""
        return True

    @property
    def name(self) -> str:
        """The protocol's name, as in config/studies.yaml."""
        return str(self.__struct_config__.tag)


class Interleaved(Sampling, frozen=True, kw_only=True, tag="interleaved"):
    """Visit every point of every sweep once per round, in a new order each round."""

    launch: ClassVar[Launch] = "graph"
    graph_forwards: ClassVar[int] = 20


class Thinned(Interleaved, frozen=True, kw_only=True, tag="thinned"):
    """Interleaved, but N above `often_to` only in every ceil(N / often_to)-th round.

    On a CPU an engine's forward takes time about proportional to its rows. So many visits to small
    N, on which all ratios depend, cost as much as a few visits to large N, and a temporary
    disturbance affects few of them. The first round has every point, and every round the baseline.
    """

    often_to: Positive = 8
    thins: ClassVar[bool] = True

    def takes_part(self, n: int, baseline: int, number: int) -> bool:
        """Return whether round `number`, from 0, visits N: those of small N more often."""
        return n == baseline or number % -(-n // self.often_to) == 0


class Adaptive(Sampling, frozen=True, kw_only=True, tag="adaptive"):
    """An interleaved sweep, then paired tests of the points that can still move the boundary.

    Paired rounds continue until N_max at `epsilon` is known within a factor of `width` at
    `confidence`, or until a cap is reached: then the verdict is `undecided`. The test examines the
    ratios after each number of paired rounds in `looks`; intervals are corrected for these looks.
    """

    rounds: Annotated[int, Meta(ge=3)] = 8
    forwards: Positive = 1
    epsilon: Annotated[float, Meta(gt=0, lt=1)] = 0.2
    width: Annotated[float, Meta(ge=1, le=100)] = 1.15
    confidence: Annotated[float, Meta(gt=0.5, lt=1)] = 0.95
    looks: Annotated[tuple[Positive, ...], Meta(min_length=1)] = (8, 24, 60, 120)
    probes: Positive = 8
    """Largest number of points besides the baseline in one paired round."""
    forwards_a_point: Positive = 48
    """Cap on the samples of a setting per N of its grid, warm-up included. With one forward per
    sample that is 1/42 of the paper's number."""
    seconds_max: Annotated[float, Meta(gt=0, le=86400)] = 60.0
    """Cap on the seconds inside forwards of a setting, warm-up included."""
    launch: Launch = "graph"
    graph_forwards: Positive = 20
    chooses_points: ClassVar[bool] = True

    @property
    def look_confidence(self) -> float:
        """The confidence at each look: one after the sweep, and those of `looks`."""
        return 1 - (1 - self.confidence) / (len(self.looks) + 1)

    def __post_init__(self) -> None:
        if list(self.looks) != sorted(set(self.looks)):
            raise ValueError(f"looks {list(self.looks)} are not strictly rising")


class Paper(Sampling, frozen=True, kw_only=True, tag="paper"):
    """The paper's protocol (app. C.1): one N after the other, median over rounds of medians.

    `warmup` forwards come once before each N, then `rounds` of `forwards`. One buffer is reused, so
    small modules are measured with a hot cache.
    """

    rounds: Annotated[int, Meta(ge=3)] = 10
    warmup: Natural = 50
    forwards: Positive = 200
    retries: Natural = 0
    weight_copies: Natural = 1
    launch: Launch = "eager"
    graph_forwards: Positive = 1
    pairs_rounds: ClassVar[bool] = False


class Paired(Sampling, frozen=True, kw_only=True, tag="paired"):
    """Each N between two visits to the baseline, as often as the machine's noise requires.

    A pair is `baseline_forwards` of the baseline, `forwards` of N, and `baseline_forwards` again.
    So a slowdown of seconds affects both sides of a ratio; in a round over all points it would
    affect some points only. Each N gets pairs until the relative half-width of the interval of
    T(N) / T(baseline) is at most `half_width`, examined after every `look_every` pairs. There are
    at most `rounds` pairs, and none after the look at which a setting's forwards exceed
    `seconds_max`.
    """

    rounds: Annotated[int, Meta(ge=3)] = 32
    forwards: Positive = 1
    baseline_forwards: Positive = 2
    half_width: Annotated[float, Meta(gt=0, lt=1)] = 0.05
    look_every: Annotated[int, Meta(ge=3)] = 8
    seconds_max: Annotated[float, Meta(gt=0, le=86400)] = 600.0
    confidence: ClassVar[float] = 0.95
    launch: ClassVar[Launch] = "graph"
    graph_forwards: ClassVar[int] = 20

    @property
    def looks(self) -> tuple[int, ...]:
        """The numbers of pairs after which intervals are examined; the last is `rounds`."""
        return (*range(self.look_every, self.rounds, self.look_every), self.rounds)

    @property
    def look_confidence(self) -> float:
        """The confidence at each of its looks."""
        return 1 - (1 - self.confidence) / len(self.looks)


Timing = Interleaved | Thinned | Adaptive | Paired | Paper
