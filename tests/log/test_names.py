"""Names of takes and segments, and their paths."""

from pathlib import Path

import pytest
from conftest import make_plan, write_take
from hypothesis import given
from hypothesis import strategies as st
from nearfree.errors import LogError
from nearfree.log.names import (
    Layout,
    TakeName,
    check_part,
    parse_take,
    require_log,
    take_of,
)

PART = st.builds(str.__add__, st.sampled_from("az09"), st.text("az09_", max_size=63))
TAKES = st.builds(
    TakeName,
    PART,
    PART,
    st.integers(1, 999_999),
    st.integers(0, 2**32 - 1).map("{:08x}".format),
)
NAME = TakeName("cpu", "dense", 2, "0123abcd")


@given(TAKES)
def test_a_name_comes_back(name: TakeName) -> None:
    """A take's text, seal and segments all lead back to the take."""
    layout = Layout(Path("results"))
    assert parse_take(str(name)) == name
    for path in (layout.seal(name), layout.segment(name, 12)):
        assert take_of(path.relative_to(layout.events)) == name


@pytest.mark.parametrize(
    "text",
    [
        "",
        "cpu",
        "cpu/dense",
        "cpu/dense/1",
        "cpu/dense/0-0123abcd",
        "cpu/dense/01-0123abcd",
        "cpu/dense/1234567-0123abcd",
        "cpu/dense/1-0123ABCD",
        "cpu/dense/1-0123abc",
        "cpu/dense/1-0123abcd.1",
        "cpu/dense/1-0123abcd\n",
        "CPU/dense/1-0123abcd",
        "../dense/1-0123abcd",
        "cpu/den se/1-0123abcd",
        "cpu/_dense/1-0123abcd",
        "a/cpu/dense/1-0123abcd",
    ],
)
def test_other_text_names_no_take(text: str) -> None:
    """Text of any other form is refused, with the form that is right."""
    with pytest.raises(LogError, match="is not the name of a take") as caught:
        parse_take(text)
    assert "scope/stream/take-plan8" in caught.value.remedy


@given(PART)
def test_a_part_names_a_folder(part: str) -> None:
    """A scope or stream of the right letters is accepted as it is."""
    assert check_part(part) == part


@pytest.mark.parametrize("text", ["", "CPU", "_a", "a-b", "a/b", "..", "a\n", "a" * 65])
def test_other_text_names_no_folder(text: str) -> None:
    """A scope or stream with any other letter, or too long, is refused."""
    with pytest.raises(LogError, match="cannot name a scope or stream"):
        check_part(text)


@pytest.mark.parametrize(
    "path",
    [
        "1-0123abcd.1.jsonl",
        "dense/1-0123abcd.1.jsonl",
        "a/cpu/dense/1-0123abcd.1.jsonl",
        "CPU/dense/1-0123abcd.1.jsonl",
        "cpu/dense/1-0123abcd.0.jsonl",
        "cpu/dense/1-0123abcd.jsonl",
        "cpu/dense/1-0123abcd.1.jsonl.bak",
        "cpu/dense/1-0123abcd.seal.json~",
        "cpu/dense/1-0123abcd.json",
    ],
)
def test_other_files_belong_to_no_take(path: str) -> None:
    """A file with another name, or in another depth, belongs to no take."""
    assert take_of(Path(path)) is None


def test_where_things_lie() -> None:
    """The paths below a results root are part of the format."""
    layout = Layout(Path("results"))
    assert layout.segment(NAME, 3) == Path("results/events/cpu/dense/2-0123abcd.3.jsonl")
    assert layout.seal(NAME) == Path("results/events/cpu/dense/2-0123abcd.seal.json")
    assert layout.receipt(NAME) == Path("results/state/cpu/dense/2-0123abcd.json")
    assert layout.table("cpu", "latency") == Path("results/tables/cpu/latency.parquet")
    assert layout.ledgers == Path("results/ledger")
    assert NAME.segment(3) == "cpu/dense/2-0123abcd.3"


def test_attempts_are_counted_as_numbers(layout: Layout) -> None:
    """Attempts come oldest first, the tenth after the ninth, and only those of the same plan."""
    for attempt in (10, 9, 1):
        path = layout.segment(NAME, attempt)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    layout.segment(TakeName("cpu", "dense", 2, "ffffffff"), 4).touch()
    layout.segment(TakeName("cpu", "dense", 20, "0123abcd"), 5).touch()
    path.with_name("2-0123abcd.x.jsonl").touch()
    assert layout.attempts(NAME) == [1, 9, 10]
    assert layout.attempts(TakeName("gpu", "dense", 2, "0123abcd")) == []


def test_takes_come_in_the_order_of_their_numbers(layout: Layout) -> None:
    """Sealed takes are listed by scope, stream and number; other files are ignored."""
    for scope, take in (("cpu", 10), ("cpu", 9), ("h20", 1)):
        write_take(layout, scope=scope, take=take)
    layout.segment(NAME, 1).touch()
    for folder in ("", "cpu", "cpu/dense"):
        (layout.events / folder / "notes.txt").touch()
    takes = [(t.scope, t.take) for t in layout.takes()]
    assert takes == [("cpu", 9), ("cpu", 10), ("h20", 1)]
    assert [t.take for t in layout.takes("h20")] == [1]
    assert layout.takes(sealed=False) == [NAME]
    assert layout.takes("none") == []


def test_a_root_must_hold_a_log(layout: Layout) -> None:
    """A folder without events/ is refused by name, so that no typo reads as an empty log."""
    with pytest.raises(LogError, match=r"results holds no events/ folder"):
        require_log(layout)
    write_take(layout)
    assert require_log(layout) == layout


def test_a_plan_decides_the_name(layout: Layout) -> None:
    """Another plan makes another take of the same number."""
    one = write_take(layout, plan=make_plan(rounds=3)).name
    other = write_take(layout, plan=make_plan(rounds=4)).name
    assert (one.take, one.plan8) != (other.take, other.plan8)
    assert layout.takes() == sorted([one, other])


@pytest.mark.parametrize("stream", ["", "*", "d*", "**", "a**", "..", "/", "[a-z]*", "dense/", "x"])
def test_a_stream_is_none_but_the_one_of_its_name(stream: str, tmp_path: Path) -> None:
    """A stream's takes are read from its own folder; patterns match no other stream."""
    layout = Layout(tmp_path)
    path = layout.seal(NAME)
    path.parent.mkdir(parents=True)
    path.touch()
    assert layout.takes("cpu", "dense") == layout.takes(None, "dense") == [NAME]
    assert layout.takes("cpu", stream) == []
