"""Reading signatures from source text, and functions that stand in for real ones."""

import inspect

import pytest

from backends.adapters.signatures import signature_of, stand_in

TEXT = """
from typing import NamedTuple, overload

import a_module_that_is_not_there


@overload
def run(x: int) -> int: ...
@overload
def run(x: str, y: int) -> str: ...
@a_module_that_is_not_there.decorated(1)
def run(x, y=a_module_that_is_not_there.A, /, z: "int" = 3, *rest, inplace: bool = False, **more):
    def inner(never_seen):
        pass


if a_module_that_is_not_there.NEW:
    def chosen(a):
        pass
else:
    def chosen(a, b=None):
        pass


class Runner:
    def __init__(self, config, *, eps=1e-6):
        pass

    def apply(self, x, w):
        pass

    @staticmethod
    def size(n):
        pass


class Output(NamedTuple):
    weights: int
    ids: int = 0
"""


@pytest.mark.parametrize(
    ("name", "signature_text"),
    [
        (
            "run",
            "(x, y=a_module_that_is_not_there.A, /, z=3, *rest, inplace=False, **more)",
        ),
        ("chosen", "(a, b=None)"),
        ("Runner", "(config, *, eps=1e-06)"),
        ("Runner.apply", "(x, w)"),
        ("Runner.size", "(n)"),
        ("Output", "(weights, ids=0)"),
    ],
)
def test_a_signature_is_read_from_text(name: str, signature_text: str) -> None:
    """The last definition counts, with every kind of parameter; self and annotations are gone."""
    assert str(signature_of(TEXT, name)) == signature_text


@pytest.mark.parametrize("name", ["inner", "Runner.gone", "Gone.apply"])
def test_a_name_that_is_not_defined_is_missing(name: str) -> None:
    """A name inside a function, or an undefined one, is a LookupError."""
    with pytest.raises(LookupError):
        signature_of(TEXT, name)


def test_signatures_differ_by_their_defaults() -> None:
    """Two readings of one text are equal, and another default makes another signature."""
    assert signature_of(TEXT, "chosen") == signature_of(TEXT, "chosen")
    other_text = TEXT.replace("b=None", "b=False")
    assert signature_of(TEXT, "chosen") != signature_of(other_text, "chosen")


def test_a_stand_in_binds_each_call() -> None:
    """A call that fits is kept and answered; one that does not fit is a TypeError, as in Python."""
    signature_ = signature_of(TEXT, "chosen")
    function = stand_in(signature_, lambda bound: bound.arguments["a"] + 1)
    assert inspect.signature(function) == signature_
    assert function(1, b=2) == 2
    assert dict(function.calls[0].arguments) == {"a": 1, "b": 2}
    with pytest.raises(TypeError):
        function(1, 2, 3)
    with pytest.raises(TypeError):
        function(1, c=2)
    assert len(function.calls) == 1
