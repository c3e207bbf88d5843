"""Protocols: which there are, what they say where nothing is said, and what none can be."""

import math
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from nearfree.core.protocols import (
    Adaptive,
    Interleaved,
    Paired,
    Paper,
    Sampling,
    Thinned,
    Timing,
)

KINDS: dict[str, type[Sampling]] = {
    "interleaved": Interleaved,
    "thinned": Thinned,
    "adaptive": Adaptive,
    "paired": Paired,
    "paper": Paper,
}


def read(**document: Any) -> Sampling:
    """Return a protocol as studies.yaml gives it."""
    kind: Any = Timing
    found: Sampling = msgspec.convert(document, kind)
    return found


@pytest.mark.parametrize(("name", "kind"), KINDS.items())
def test_a_name_gives_its_protocol(name: str, kind: type[Sampling]) -> None:
    """A protocol is known by its name, and tells it."""
    protocol = read(name=name)
    assert type(protocol) is kind
    assert protocol.name == name
    assert protocol == kind()


def test_the_papers_protocol_is_the_papers() -> None:
    """The paper runs 50 untimed and 10 x 200 timed forwards, eager and on one buffer."""
    paper = Paper()
    assert (paper.warmup, paper.rounds, paper.forwards) == (50, 10, 200)
    assert (paper.launch, paper.weight_copies, paper.retries) == ("eager", 1, 0)


@given(st.integers(1, 200), st.integers(1, 64), st.integers(1, 200))
def test_large_n_are_visited_less_often(n: int, often_to: int, baseline: int) -> None:
    """The first round has every N, every round the baseline and N up to `often_to`."""
    thinned = Thinned(rounds=60, often_to=often_to)
    taken = [number for number in range(60) if thinned.takes_part(n, baseline, number)]
    assert taken[0] == 0
    every = 1 if n == baseline else math.ceil(n / often_to)
    assert taken == list(range(0, 60, every))


@pytest.mark.parametrize("name", ["interleaved", "thinned", "adaptive", "paired"])
def test_our_protocols_read_cold_weights(name: str) -> None:
    """Without a word, our protocols give weights turns, repeat dirty forwards and use graphs."""
    protocol = read(name=name)
    assert protocol.weight_copies >= 2
    assert protocol.retries > 0
    assert protocol.launch == "graph"


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("rounds", 2),
        ("warmup", -1),
        ("forwards", 0),
        ("retries", -1),
        ("weight_copies", -1),
        ("threads", 0),
        ("seed", "now"),
    ],
)
def test_a_bad_value_is_refused_by_name(name: str, field: str, value: object) -> None:
    """A value that no protocol can follow is refused by its field's name."""
    with pytest.raises(msgspec.ValidationError, match=rf"\$\.{field}"):
        read(name=name, **{field: value})


@pytest.mark.parametrize("name", ["adaptive", "paper"])
@pytest.mark.parametrize(("field", "value"), [("launch", "lazy"), ("graph_forwards", 0)])
def test_a_bad_launch_is_refused_by_name(name: str, field: str, value: object) -> None:
    """A way to launch that there is not is refused by its field's name."""
    with pytest.raises(msgspec.ValidationError, match=rf"\$\.{field}"):
        read(name=name, **{field: value})


def test_the_interleaved_launch_is_fixed() -> None:
    """The interleaved protocol always replays graphs of 20: its plans are the same as ever."""
    assert (Interleaved.launch, Interleaved.graph_forwards) == ("graph", 20)
    assert set(msgspec.to_builtins(Interleaved())) == {
        *("name", "rounds", "warmup", "forwards", "retries", "weight_copies", "threads", "seed"),
    }
    with pytest.raises(msgspec.ValidationError, match="launch"):
        read(name="interleaved", launch="graph")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("epsilon", 0),
        ("epsilon", 1),
        ("width", 0.9),
        ("confidence", 0.5),
        ("confidence", 1),
        ("looks", []),
        ("looks", [0]),
        ("probes", 0),
        ("seconds_max", 0),
    ],
)
def test_a_bad_test_is_refused_by_name(field: str, value: object) -> None:
    """A paired test that could not decide is refused by its field's name."""
    with pytest.raises(msgspec.ValidationError, match=rf"\$\.{field}"):
        read(name="adaptive", **{field: value})


@pytest.mark.parametrize("name", ["interleaved", "paper"])
def test_another_protocols_field_is_refused(name: str) -> None:
    """A field that only the adaptive protocol has is refused elsewhere, not ignored."""
    with pytest.raises(msgspec.ValidationError, match="epsilon"):
        read(name=name, epsilon=0.2)


def test_an_unknown_protocol_is_refused() -> None:
    """A name that no protocol has is refused."""
    with pytest.raises(msgspec.ValidationError, match="'sweep'"):
        read(name="sweep")


@given(st.sampled_from(sorted(KINDS)), st.integers(3, 50), st.integers(0, 9))
def test_a_protocol_survives_json(name: str, rounds: int, warmup: int) -> None:
    """A protocol written out in full and read again is the same, with its name."""
    kind: Any = Timing
    protocol = read(name=name, rounds=rounds, warmup=warmup)
    raw = msgspec.json.encode(protocol)
    assert msgspec.json.decode(raw, type=kind) == protocol
    assert msgspec.json.decode(raw)["name"] == name


@given(st.integers(3, 100), st.integers(3, 100))
def test_pairs_are_looked_at_every_so_often(rounds: int, look_every: int) -> None:
    """Looks are `look_every` pairs apart, and the last one is after the last pair."""
    looks = Paired(rounds=rounds, look_every=look_every).looks
    assert looks[-1] == rounds
    assert list(looks) == sorted(set(looks))
    assert all(look % look_every == 0 for look in looks[:-1])
    assert all(b - a <= look_every for a, b in zip((0, *looks), looks, strict=False))


@pytest.mark.parametrize(
    ("field", "value"),
    [("half_width", 0), ("half_width", 1), ("look_every", 2), ("baseline_forwards", 0),
     ("seconds_max", 0)],
)  # fmt: skip
def test_bad_pairs_are_refused_by_name(field: str, value: object) -> None:
    """What no pairs can be made or judged by is refused by its field's name."""
    with pytest.raises(msgspec.ValidationError, match=rf"\$\.{field}"):
        read(name="paired", **{field: value})


@pytest.mark.parametrize("looks", [[24, 8], [8, 8]])
def test_looks_rise(looks: list[int]) -> None:
    """A test looks after more and more paired rounds; anything else is refused by name."""
    with pytest.raises(msgspec.ValidationError, match="are not strictly rising"):
        read(name="adaptive", looks=looks)
