"""Names of matrices: which names an entry of a list covers, and which stay undecided."""

import re
import time
from fnmatch import fnmatchcase
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nearfree.decoders.keys import Keys
from nearfree.decoders.names import Names, Reading, read_names
from nearfree.errors import RefusedError
from once import one_in

READINGS: tuple[Reading, ...] = ("whole", "path", "text")
Q, GATE = "model.layers.1.self_attn.q_proj", "model.layers.1.mlp.gate"


def names(*entries: str, reading: Reading = "path") -> Names:
    """Return what some entries name."""
    return read_names(Keys(Path("config.json"), {"ignore": list(entries)}), "ignore", reading)


@pytest.mark.parametrize(
    ("entry", "covered", "uncovered"),
    [
        (Q, Q, "model.layers.11.self_attn.q_proj"),
        ("self_attn", Q, GATE),
        ("gate", GATE, "model.layers.1.mlp.gate_proj"),
        ("lm_head", "lm_head", Q),
        (f"{GATE}.weight", GATE, Q),
        ("model.layers.1*", "model.layers.10.mlp.gate", "model.layers.2.mlp.gate"),
        ("model.layers.*.self_attn", Q, GATE),
        ("re:.*self_attn.*", Q, GATE),
        ("re:.*mlp.gate$", GATE, "model.layers.1.mlp.gate_proj"),
        (r"re:.*mlp\.(gate|up)_proj.*", "model.layers.1.mlp.up_proj", "model.layers.1.mlp.up"),
        (r"re:model\.layers\.\d+\.self_attn", Q, "model.layers.x.self_attn.q_proj"),
        ("model.language_model.layers.1.mlp.gate", GATE, Q),
        ("language_model.model.layers.1.self_attn*", Q, GATE),
        ("model.layers.1.self_attn.qkv_proj", Q, "model.layers.1.self_attn.o_proj"),
    ],
)
def test_an_entry_covers_a_name_its_module_or_its_end(
    entry: str, covered: str, uncovered: str
) -> None:
    """An entry stands for whole parts of names, whatever way of writing it has."""
    listed_names = names(entry)
    assert listed_names.covers(covered)
    assert not listed_names.covers(uncovered)


@pytest.mark.parametrize(
    ("reading", "entry", "name"),
    [
        ("whole", "model.layers.1.self_attn", Q),
        ("text", "mlp.gate", "model.layers.1.mlp.gate_proj"),
        ("text", "model.layers.1", "model.layers.10.mlp.gate"),
        ("path", "model.layers.1.mlp.gate", "model.layers.1.mlp.gate_proj"),
        ("path", "up_proj", "model.layers.1.mlp.gate_up_proj"),
    ],
)
def test_what_engines_read_differently_is_in_doubt(reading: Reading, entry: str, name: str) -> None:
    """An entry that some engines find within a name, and others do not, is told."""
    listed_names = names(entry, reading=reading)
    assert not listed_names.covers(name)
    assert listed_names.doubt(name) == entry
    assert names("lm_head", reading=reading).doubt(name) is None


@pytest.mark.parametrize(
    "entry", ["re:(a+)+$", "re:(?!x).*", "re:a{9}", "re:[a-z]+", "re:", "", "Linear", "a[0-9]"]
)
def test_expressions_outside_the_language_are_refused(entry: str) -> None:
    """An expression that is not known, a class of modules or nothing is refused with its text."""
    with pytest.raises(RefusedError, match="are not understood") as error:
        names(entry)
    assert entry in str(error.value)


@pytest.mark.parametrize(
    "entries", [[f"*.{number}.*" for number in range(200)], [f"re:({'a|' * 600}b)$"]]
)
def test_patterns_of_many_pieces_are_refused(entries: list[str]) -> None:
    """Work on patterns is bounded."""
    with pytest.raises(RefusedError, match=r"patterns of 60[01] pieces"):
        names(*entries)


LETTERS = st.text("ab.1", min_size=1, max_size=8)
PIECES = st.lists(st.sampled_from(["a", "b", "ab", r"\.", ".*", ".+", ".", r"\d+", "(a|ab)", "1"]))


@given(pieces=PIECES, name=LETTERS, at_end=st.booleans())
def test_an_expression_matches_what_python_matches(
    pieces: list[str], name: str, *, at_end: bool
) -> None:
    """Within the small language, a pattern covers what its regular expression matches."""
    pattern = "".join(pieces) + "$" * at_end
    if not pieces:
        return
    expected = re.match(pattern.replace("$", r"\Z"), name) is not None
    assert names(f"re:{pattern}", reading="whole").covers(name) == expected


@given(pattern=st.text("ab.*?", min_size=1, max_size=8), name=LETTERS)
def test_a_wildcard_covers_what_fnmatch_matches(pattern: str, name: str) -> None:
    """A wildcard covers the names that fnmatch gives it."""
    assert names(pattern, reading="whole").covers(name) == fnmatchcase(name, pattern)


@given(
    entries=st.lists(
        st.sampled_from(
            [Q, "layers.3", "layers.1*", "re:.*experts.*", r"re:.*\.\d+\.up", "experts.2", "gate",
             "*.up", "3.up", "model.layers.0.experts.1.up", "re:.*s.1.*", "re:.*up$"]
        ),
        max_size=4,
    ),
    reading=st.sampled_from(["whole", "path", "text"]),
)  # fmt: skip
def test_numbers_that_are_not_told_apart_are_treated_alike(
    entries: list[str], reading: Reading
) -> None:
    """Where a list says that it does not tell a module's parts apart, each number is one case."""
    listed_names = names(*entries, reading=reading)
    for stem in ("model.layers", "model.layers.0.experts", "model.layers.3.experts"):
        if not listed_names.tell_apart(stem):
            cases = [f"{stem}.{number}.up" for number in range(25)]
            assert (
                len({(listed_names.covers(case), listed_names.doubt(case)) for case in cases}) == 1
            )


def test_a_pattern_with_many_stars_is_quick() -> None:
    """No expression takes more than linear time a piece: one that backtracks for ever does not."""
    start = time.process_time()
    assert not names("re:" + ".*a" * 40 + "b$").covers("a" * 200)
    assert time.process_time() - start < 10


@pytest.mark.parametrize("reading", READINGS[one_in(3, "names")])
def test_a_long_list_is_looked_up_by_the_parts_of_a_name(reading: Reading) -> None:
    """100,000 names, or 100,000 beginnings of names, answer 300 questions in ten seconds."""
    entries = [f"model.layers.{index % 80}.x{index}.y" for index in range(100_000)]
    for listed_names in (
        names(*entries, reading=reading),
        names(*(f"{x}*" for x in entries), reading=reading),
    ):
        start = time.process_time()
        for number in range(300):
            name = f"model.layers.{number}.self_attn.q_proj"
            assert not listed_names.covers(name)
            assert listed_names.doubt(name) is None
            assert listed_names.tell_apart("model.layers")
        assert time.process_time() - start < 10
