"""How a take is timed: the protocols, each with all that decides which samples it takes."""

from typing import Annotated, ClassVar, Literal

from msgspec import Meta, Struct

Positive = Annotated[int, Meta(ge=1)]
Natural = Annotated[int, Meta(ge=0)]
Launch = Literal["eager", "graph"]
EAGER: Launch = "eager"
"""Kernels are launched one by one; else a CUDA graph holds them."""


class Sampling(
    Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False, tag_field="name"
):
    """What every protocol says: a visit is `warmup` untimed and `forwards` timed forwards.

    A timed forward that was disturbed is kept as dirty and repeated, at most `retries` times a
    visit. `weight_copies` take turns, so that weights and keys are read from memory; one copy
    means a hot cache, 0 on a CPU as many copies as a cold one takes. `threads` counts for CPUs
    alone, `launch` and `graph_forwards` for GPUs: with `graph` a sample is the replay of a graph of
    that many forwards, made for each N.
    """

    rounds: Annotated[int, Meta(ge=3)] = 20
    warmup: Natural = 1
    forwards: Positive = 3
    retries: Natural = 3
    weight_copies: Natural = 2
    threads: Annotated[int, Meta(ge=1, le=4096)] = 1
    seed: Annotated[int, Meta(ge=0, lt=2**32)] = 0

    @property
    def name(self) -> str:
        """The protocol's name, as in config/studies.yaml."""
        return str(self.__struct_config__.tag)


class Interleaved(Sampling, frozen=True, kw_only=True, tag="interleaved"):
    """Visit every point of every sweep once a round, in a new order each round."""

    launch: ClassVar[Launch] = "graph"
    graph_forwards: ClassVar[int] = 20


class Thinned(Interleaved, frozen=True, kw_only=True, tag="thinned"):
    """Interleaved, but N beyond `often_to` in every ceil(N / often_to)-th round alone.

    A forward of an engine on a CPU takes about as much longer as it has more rows. So small N, on
    which all ratios rest, are visited many times for what few visits to large ones take, and what
    disturbs a machine for a while touches few of them. The first round has every point, and every
    round has the baseline.
    """

    often_to: Positive = 8

    def takes_part(self, n: int, baseline: int, number: int) -> bool:
        """Return whether round `number`, from 0, visits N."""
        return n == baseline or number % -(-n // self.often_to) == 0


class Adaptive(Sampling, frozen=True, kw_only=True, tag="adaptive"):
    """An interleaved sweep, then paired tests of the points that can still move the boundary.

    Paired rounds go on until N_max at `epsilon` is known within a factor of `width` at
    `confidence`, or a cap is met: then the verdict is `undecided`. The test looks at what it has
    after each number of paired rounds in `looks`, and pays for looking several times.
    """

    rounds: Annotated[int, Meta(ge=3)] = 8
    forwards: Positive = 1
    epsilon: Annotated[float, Meta(gt=0, lt=1)] = 0.2
    width: Annotated[float, Meta(ge=1, le=100)] = 1.15
    confidence: Annotated[float, Meta(gt=0.5, lt=1)] = 0.95
    looks: Annotated[tuple[Positive, ...], Meta(min_length=1)] = (8, 24, 60, 120)
    probes: Positive = 8
    """Points besides the baseline in one paired round, at most."""
    forwards_a_point: Positive = 48
    """Cap on the samples of one setting, warm-up included, for each N of its grid. Where a sample
    is one forward, that is a 42nd of the paper's."""
    seconds_max: Annotated[float, Meta(gt=0, le=86400)] = 60.0
    """Cap on the seconds inside forwards of one setting, warm-up included."""
    launch: Launch = "graph"
    graph_forwards: Positive = 20

    def __post_init__(self) -> None:
        if list(self.looks) != sorted(set(self.looks)):
            raise ValueError(f"looks {list(self.looks)} are not strictly rising")


class Paper(Sampling, frozen=True, kw_only=True, tag="paper"):
    """The paper's protocol (app. C.1): one N after the other, median of medians of rounds.

    `warmup` comes once before each N, then `rounds` of `forwards`; one buffer is used again and
    again, so small modules are measured with a hot cache.
    """

    rounds: Annotated[int, Meta(ge=3)] = 10
    warmup: Natural = 50
    forwards: Positive = 200
    retries: Natural = 0
    weight_copies: Natural = 1
    launch: Launch = "eager"
    graph_forwards: Positive = 1


class Paired(Sampling, frozen=True, kw_only=True, tag="paired"):
    """Every N between visits to the baseline, as often as the machine's noise asks for.

    A pair is `baseline_forwards` of the baseline, `forwards` of N and `baseline_forwards` again. So
    what slows a machine down for seconds slows down both sides of a ratio, where a round over all
    points would spread it over some of them. Each N gets pairs until the interval of its T(N) /
    T(baseline) is `half_width` of it on either side, looked at after every `look_every` of them; at
    most `rounds`, and no further `look_every` once a setting's forwards have taken `seconds_max`.
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
        """After how many pairs an interval is looked at, the last one `rounds`."""
        return (*range(self.look_every, self.rounds, self.look_every), self.rounds)


Timing = Interleaved | Thinned | Adaptive | Paired | Paper
