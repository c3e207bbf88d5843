"""llama.cpp's flags, compared with its source, and the cost array's documented form."""

import hashlib
import math
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nearfree.derive.schedule.llama_cpp import (
    HEAD,
    LOOKUP,
    MODEL,
    OWN_LAYER,
    PARSERS,
    PATTERN,
    cost_array,
    llama_cpp_option,
    shortest_draft,
    worth_verifying,
)
from nearfree.derive.schedule.option import Parser
from nearfree.errors import ConfigError

from derive.schedule.conftest import Sources

FORM = re.compile(r'export GGML_BATCH_COSTS="(1(?:,\d+(?:\.\d+)?)*)"')
KINDS = (MODEL, OWN_LAYER, HEAD, LOOKUP)
FREE = dict.fromkeys(range(1, 65), 1.0)


def flags(kind: str, k: int, shortest: int = 0) -> dict[str, str]:
    """Return an option's flags with their values."""
    option = llama_cpp_option({1: k}, kind=kind, shortest=shortest, ratio=FREE, epsilon=0.2)
    words = option.text.split()
    return dict(zip(words[::2], words[1::2], strict=True))


@given(st.sampled_from(KINDS), st.integers(1, 1024), st.integers(0, 1024))
def test_a_drafter_has_its_flags(kind: str, k: int, shortest: int) -> None:
    """The longest draft is K; the shortest draft and a lookup's pattern are at most K."""
    flag_values = flags(kind, k, shortest)
    assert flag_values.pop("--spec-type") == kind
    if kind == LOOKUP:
        size = int(flag_values["--spec-ngram-simple-size-n"])
        assert flag_values["--spec-ngram-simple-size-m"] == str(k)
        assert 1 <= size <= min(PATTERN, k)
    else:
        assert flag_values == {
            "--spec-draft-n-max": str(k),
            "--spec-draft-n-min": str(min(shortest, k)),
        }


def test_no_near_free_draft_has_no_flags() -> None:
    """K = 0 is refused, as by every engine."""
    with pytest.raises(ConfigError, match="no batch size of the schedule"):
        flags(MODEL, 0)


@given(st.lists(st.booleans(), max_size=20))
def test_each_draft_from_the_shortest_on_passes(passes: list[bool]) -> None:
    """All drafts from the shortest on are near-free, the one before is not; 0 means all."""
    shortest = shortest_draft(passes)
    assert all(passes[max(shortest - 1, 0) :])
    assert not shortest or not passes[shortest - 2]
    assert bool(shortest) == (not all(passes))


def test_a_draft_is_worth_its_forward() -> None:
    """With an acceptance, a draft yields more than its forward costs."""
    stairs = {1: 1.0, 2: 1.6, 3: 1.6, 4: 1.6, 5: 3.0}
    assert worth_verifying(stairs, 4, [0.5, 0.25, 0.1, 0.0]) == [False, True, True, False]


def test_without_an_acceptance_no_draft_is_left_out() -> None:
    """Without an acceptance short drafts follow llama.cpp's default, with a note."""
    falls = {1: 1.0, 2: 1.21, 3: 1.1, 4: 1.3, 5: 1.19}
    for ratio, options in ((falls, True), (FREE, False)):
        option = llama_cpp_option({1: 4}, kind=MODEL, shortest=None, ratio=ratio, epsilon=0.2)
        assert option.text == "--spec-type draft-simple --spec-draft-n-max 4"
        assert any(note.startswith("Drafts of 1, 3 tokens are") for note in option.notes) == options
        assert sum("--acceptance" in note for note in option.notes) == options


@pytest.mark.slow
@pytest.mark.parametrize("parser", PARSERS, ids=lambda parser: parser.name)
def test_the_recorded_lines_are_those_of_the_release(source: Sources, parser: Parser) -> None:
    """The recorded file and lines hold the named text with its digest."""
    first, last = parser.lines
    text = source(parser.package, parser.version, parser.file).splitlines(keepends=True)
    held = "".join(text[first - 1 : last])
    assert all(name in held for name in parser.name.split(", "))
    assert hashlib.sha256(held.encode()).hexdigest() == parser.sha256


@pytest.mark.slow
def test_the_release_has_the_flags_and_types(source: Sources) -> None:
    """Each flag and each type exists in the release, and its default is PATTERN."""
    read = {parser.file: source(parser.package, parser.version, parser.file) for parser in PARSERS}
    options = next(text for file, text in read.items() if file.endswith("arg.cpp"))
    names = next(text for file, text in read.items() if file.endswith("speculative.cpp"))
    for kind in KINDS:
        assert re.search(rf'\{{"{kind}",\s+COMMON_SPECULATIVE_TYPE_', names)
        assert all(f'{{"{flag}"}}' in options for flag in flags(kind, 3))
    first = PARSERS[0]
    header = source(first.package, first.version, "vendor/llama.cpp/common/common.h")
    maps = header.partition("struct common_params_speculative_ngram_map {")[2].partition("};")[0]
    assert re.search(rf"size_n\s+= {PATTERN};", maps)


@given(st.lists(st.floats(0.01, 1000), max_size=63))
def test_the_array_is_the_cost_of_a_token(ratios: list[float]) -> None:
    """The N-th number is T(N) / (N T(1)), in plain decimals, the first one 1."""
    curve = {1: 1.0} | dict(enumerate(ratios, 2))
    match = FORM.fullmatch(cost_array(curve))
    assert match
    costs = [float(cost) for cost in match[1].split(",")]
    assert costs == pytest.approx([curve[n] / n for n in sorted(curve)], abs=5.1e-7)


def test_a_free_forward_is_as_in_the_thread() -> None:
    """If N positions cost as much as one, a token costs 1 / N."""
    free = {4: 1.0, 1: 1.0, 3: 1.0, 2: 1.0}
    array = 'export GGML_BATCH_COSTS="1,0.5,0.333333,0.25"'
    assert cost_array(free) == array
    option = llama_cpp_option({1: 3}, kind=MODEL, shortest=0, ratio=free, epsilon=0.2)
    assert array not in option.text
    assert any(note.startswith("proposed") and note.endswith(array) for note in option.notes)


@pytest.mark.parametrize(
    ("curve", "says"),
    [
        ({}, "does not begin"),
        ({1: 1.0, 2: 1.0, 4: 1.0}, "no N = 3"),
        ({1: 1.0, 2: math.nan}, "nan for T"),
        ({1: 1.0, 2: 1e-9}, "at N = 2 is below"),
        (dict.fromkeys(range(1, 5000), 1.0), "has 4999 N"),
    ],
)
def test_a_curve_is_refused(curve: dict[Any, Any], says: str) -> None:
    """A curve without each N, or with an invalid latency, is refused."""
    with pytest.raises(ConfigError, match=says):
        cost_array(curve)
