"""Protocols: their names, their defaults, and refused values."""

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


def read_protocol(**document: Any) -> Sampling:
    """Return a protocol as studies.yaml gives it."""
    kind: Any = Timing
    protocol: Sampling = msgspec.convert(document, kind)
    return protocol


@pytest.mark.parametrize(("name", "kind"), KINDS.items())
def test_a_name_gives_its_protocol(name: str, kind: type[Sampling]) -> None:
    """A protocol is found by its name, and has it as a field."""
    protocol = read_protocol(name=name)
    assert type(protocol) is kind
    assert protocol.name == name
    assert protocol == kind()


SHARED = {"rounds": 20, "warmup": 1, "forwards": 3, "retries": 3, "weight_copies": 2,
          "threads": 1, "seed": 0}  # fmt: skip
DEFAULTS: dict[str, dict[str, Any]] = {
    "interleaved": {},
    "thinned": {"often_to": 8},
    "adaptive": {
        "rounds": 8, "forwards": 1, "epsilon": 0.2, "width": 1.15, "confidence": 0.95,
        "looks": (8, 24, 60, 120), "probes": 8, "forwards_a_point": 48, "seconds_max": 60.0,
        "launch": "graph", "graph_forwards": 20,
    },
    "paired": {
        "rounds": 32, "forwards": 1, "baseline_forwards": 2, "half_width": 0.05, "look_every": 8,
        "seconds_max": 600.0,
    },
    "paper": {
        "rounds": 10, "warmup": 50, "forwards": 200, "retries": 0, "weight_copies": 1,
        "launch": "eager", "graph_forwards": 1,
    },
}  # fmt: skip


@pytest.mark.parametrize("name", KINDS)
def test_defaults_never_change(name: str) -> None:
    """Recorded plans hold these values: with another default each plan would be a new one."""
    assert msgspec.to_builtins(read_protocol(name=name)) == {
        "name": name, **SHARED, **DEFAULTS[name],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("name", "field", "least", "most"),
    [
        ("interleaved", "rounds", 3, None),
        ("paper", "rounds", 3, None),
        ("adaptive", "rounds", 3, None),
        ("paired", "rounds", 3, None),
        ("paired", "look_every", 3, None),
        ("interleaved", "threads", 1, 4096),
        ("interleaved", "seed", 0, 2**32 - 1),
        ("adaptive", "width", 1, 100),
        ("adaptive", "seconds_max", None, 86400),
        ("paired", "seconds_max", None, 86400),
    ],
)
def test_a_value_at_its_bound_is_taken(
    name: str, field: str, least: int | None, most: int | None
) -> None:
    """The least and the largest value are accepted, and the next one beyond is refused."""
    for bound, beyond in ((least, -1), (most, 1)):
        if bound is not None:
            assert getattr(read_protocol(name=name, **{field: bound}), field) == bound
            with pytest.raises(msgspec.ValidationError, match=rf"\$\.{field}"):
                read_protocol(name=name, **{field: bound + beyond})


def test_the_papers_protocol_has_the_papers_settings() -> None:
    """The paper runs 50 untimed and 10 x 200 timed forwards, eager and on one buffer."""
    paper = Paper()
    assert (paper.warmup, paper.rounds, paper.forwards) == (50, 10, 200)
    assert (paper.launch, paper.weight_copies, paper.retries) == ("eager", 1, 0)


@given(st.integers(1, 200), st.integers(1, 64), st.integers(1, 200))
def test_large_n_are_visited_less_often(n: int, often_to: int, baseline: int) -> None:
    """The first round has every N, every round the baseline and N up to `often_to`."""
    thinned = Thinned(rounds=60, often_to=often_to)
    visited = [number for number in range(60) if thinned.takes_part(n, baseline, number)]
    assert visited[0] == 0
    interval = 1 if n == baseline else math.ceil(n / often_to)
    assert visited == list(range(0, 60, interval))


@pytest.mark.parametrize("name", ["interleaved", "thinned", "adaptive", "paired"])
def test_cold_weights_are_the_default(name: str) -> None:
    """By default, our protocols rotate weights, repeat dirty forwards and use graphs."""
    protocol = read_protocol(name=name)
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
        read_protocol(name=name, **{field: value})


@pytest.mark.parametrize("name", ["adaptive", "paper"])
@pytest.mark.parametrize(("field", "value"), [("launch", "lazy"), ("graph_forwards", 0)])
def test_an_unknown_launch_is_refused_by_name(name: str, field: str, value: object) -> None:
    """An unknown way to launch is refused by its field's name."""
    with pytest.raises(msgspec.ValidationError, match=rf"\$\.{field}"):
        read_protocol(name=name, **{field: value})


def test_the_launch_of_pairs_is_fixed() -> None:
    """The paired protocol replays graphs of 20, and its intervals have a confidence of 0.95."""
    assert (Paired.launch, Paired.graph_forwards, Paired.confidence) == ("graph", 20, 0.95)
    assert (Thinned.launch, Thinned.graph_forwards) == ("graph", 20)


def test_the_interleaved_launch_is_fixed() -> None:
    """The interleaved protocol always replays graphs of 20, so its plans never change."""
    assert (Interleaved.launch, Interleaved.graph_forwards) == ("graph", 20)
    assert set(msgspec.to_builtins(Interleaved())) == {
        *("name", "rounds", "warmup", "forwards", "retries", "weight_copies", "threads", "seed"),
    }
    with pytest.raises(msgspec.ValidationError, match="launch"):
        read_protocol(name="interleaved", launch="graph")


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
    """Values under which a paired test could not decide are refused by the field's name."""
    with pytest.raises(msgspec.ValidationError, match=rf"\$\.{field}"):
        read_protocol(name="adaptive", **{field: value})


@pytest.mark.parametrize("name", ["interleaved", "paper"])
def test_another_protocols_field_is_refused(name: str) -> None:
    """A field that only the adaptive protocol has is refused elsewhere, not ignored."""
    with pytest.raises(msgspec.ValidationError, match="epsilon"):
        read_protocol(name=name, epsilon=0.2)


def test_an_unknown_protocol_is_refused() -> None:
    """An unknown name of a protocol is refused."""
    with pytest.raises(msgspec.ValidationError, match="'sweep'"):
        read_protocol(name="sweep")


@given(st.sampled_from(sorted(KINDS)), st.integers(3, 50), st.integers(0, 9))
def test_a_protocol_survives_json(name: str, rounds: int, warmup: int) -> None:
    """A protocol written out in full and read again is the same, with its name."""
    kind: Any = Timing
    protocol = read_protocol(name=name, rounds=rounds, warmup=warmup)
    raw = msgspec.json.encode(protocol)
    assert msgspec.json.decode(raw, type=kind) == protocol
    assert msgspec.json.decode(raw)["name"] == name


@given(st.integers(3, 100), st.integers(3, 100))
def test_looks_are_a_fixed_number_of_pairs_apart(rounds: int, look_every: int) -> None:
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
    """Values with which pairs could not be made or judged are refused by the field's name."""
    with pytest.raises(msgspec.ValidationError, match=rf"\$\.{field}"):
        read_protocol(name="paired", **{field: value})


@pytest.mark.parametrize("looks", [[24, 8], [8, 8]])
def test_looks_rise(looks: list[int]) -> None:
    """Looks come after more and more paired rounds; any other list is refused by name."""
    with pytest.raises(msgspec.ValidationError, match="are not strictly rising"):
        read_protocol(name="adaptive", looks=looks)
