"""The tree of errors."""

import re

import nearfree.errors
import pytest
from nearfree.errors import NearfreeError, Refusal, Refusals, RefusedError


def descendants(kind: type[NearfreeError]) -> list[type[NearfreeError]]:
    """Return an error and everything below it that has a public name, in order of definition."""
    children = [child for child in kind.__subclasses__() if not child.__name__.startswith("_")]
    return [kind, *(below for child in children for below in descendants(child))]


TREE = descendants(NearfreeError)


def test_the_tree_is_the_one_that_is_drawn() -> None:
    """The tree at the top of the file names every error, each under its parent."""
    drawn = {}
    parents: list[str] = []
    for line in (nearfree.errors.__doc__ or "").splitlines():
        match = re.match(r"(?P<lead>(│   )*(├── |└── )?)(?P<name>\w+Error)", line)
        if match:
            depth = len(match["lead"]) // 4
            parents = [*parents[:depth], match["name"]]
            drawn[match["name"]] = parents[-2] if depth else "Exception"
    real = {kind.__name__: kind.__mro__[1].__name__ for kind in TREE}
    assert drawn == real


def test_the_names_are_pinned() -> None:
    """The module offers these errors and no other."""
    assert [kind.__name__ for kind in TREE] == [
        "NearfreeError",
        "ConfigError",
        "RefusedError",
        "LogError",
        "DamageError",
        "BusyError",
        "WriteError",
        "TableError",
        "SourceError",
        "LackingError",
        "MovedError",
        "UnknownConstructError",
        "StoppedError",
        "LockError",
        "SchedulerError",
        "HardwareError",
        "EvidenceError",
    ]


@pytest.mark.parametrize("kind", [kind for kind in TREE if kind is not RefusedError])
def test_an_error_says_what_and_what_to_do(kind: type[NearfreeError]) -> None:
    """An error's text is what happened, a stop, and what to do."""
    error = kind("the file x is gone", remedy="Restore it")
    assert str(error) == "the file x is gone. Restore it"
    assert (error.what, error.remedy) == ("the file x is gone", "Restore it")


def test_one_refusal_reads_like_any_error() -> None:
    """A single reason is printed with its file and key, then its remedy."""
    error = RefusedError([Refusal("config.json", "d_model", "is missing", "Add it")])
    assert str(error) == "config.json: d_model is missing. Add it"


def test_every_reason_is_told_at_once() -> None:
    """What several readers refuse is one error with each reason once, in the order found."""
    first = Refusal("config.json", "a", "is odd", "Mend a")
    second = Refusal("hf_quant_config.json", "b", "is odd", "Mend b")
    refusals = Refusals()
    for reason in (first, second, first):
        with refusals.collect():
            raise RefusedError([reason])
    with pytest.raises(RefusedError) as refusal:
        refusals.check()
    assert refusal.value.refusals == (first, second)
    assert refusal.value.what == (
        "2 things are not understood:"
        "\n  config.json: a is odd. Mend a\n  hf_quant_config.json: b is odd. Mend b"
    )


def test_nothing_refused_is_no_error() -> None:
    """Without a refusal nothing is raised."""
    Refusals().check()


def test_an_error_needs_a_remedy() -> None:
    """No error can be raised without saying what to do."""
    with pytest.raises(TypeError, match="remedy"):
        NearfreeError("the file x is gone")  # type: ignore[call-arg]
