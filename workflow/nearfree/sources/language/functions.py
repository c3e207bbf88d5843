"""The functions that a rule's expressions may call: Python's own, and C++'s where they differ."""

import ast
import math
import re
import struct
from collections.abc import Callable
from typing import Any

MOST_TEXT = 4096
"""Characters of the longest text, and items of the longest list; longer ones are hostile."""
_ORDERED = ("join", "list", "str", "tuple")
_PLAIN = (int, float, str, type(None))


def nodes_of(tree: ast.AST) -> list[ast.AST]:
    """Return a tree's nodes in the order of `ast.walk`, which takes twice as long."""
    nodes = [tree]
    for node in nodes:
        for name in node._fields:
            part = getattr(node, name, None)
            if type(part) is list:
                nodes.extend([item for item in part if isinstance(item, ast.AST)])
            elif isinstance(part, ast.AST):
                nodes.append(part)
    return nodes


def float32(value: float) -> float:
    """Return the nearest single-precision number: what a C++ float holds."""
    return float(struct.unpack("<f", struct.pack("<f", float(value)))[0])


def quotient(left: float, right: float) -> float:
    """Return C++'s `left / right`: truncated for integers."""
    if isinstance(left, int) and isinstance(right, int):
        whole = abs(left) // abs(right)
        return whole if (left < 0) == (right < 0) else -whole
    return left / right


def remainder(left: int, right: int) -> int:
    """Return C++'s `left % right`: it has the sign of `left`."""
    rest = abs(left) % abs(right)
    return -rest if left < 0 else rest


def unsigned(value: float) -> int:
    """Return a number that C++ holds without a sign; a negative one wraps, and has no value."""
    if value < 0:
        raise ValueError(f"{value} wraps around where it has no sign")
    return int(value)


def join(*parts: object) -> str:
    """Return a formatted text: its parts, one after the other."""
    return "".join(map(text, parts))


def text(value: object = "") -> str:
    """Return Python's `str` of a number, a text, or a group of such."""
    _writable(value)
    return str(value)


def _writable(value: object) -> None:
    if not isinstance(value, (*_PLAIN, list, tuple)):
        raise TypeError(f"a {type(value).__name__} is written into a text")
    for each in value if isinstance(value, list | tuple) else ():
        _writable(each)


def re_sub(pattern: str, new: str, old: str) -> str:
    """Return Python's `re.sub` for a class of characters; other patterns may not end."""
    if not re.fullmatch(r"\[[^\[\]]+\]\+?", pattern) or re.search(r"\\[^-. ]", new):
        raise ValueError(f"the pattern {pattern!r} with {new!r} is outside the known set")
    try:
        return re.sub(pattern, lambda _: new.replace("\\", ""), old)
    except re.error as error:
        raise ValueError(str(error)) from error


_OWN: tuple[Callable[..., Any], ...] = (
    *(int.bit_length, math.ceil),
    *(float32, join, quotient, re_sub, remainder, unsigned),
)
OWN = {each.__name__: each for each in _OWN}
"""Names that mean this in a rule, and mean nothing in Python: no Python source may call them."""
_PYTHON: tuple[Callable[..., Any], ...] = (
    *(abs, all, any, bool, float, int, len, list, max, min, range, round, sorted, tuple),
)
PYTHON = {each.__name__: each for each in _PYTHON} | {"set": frozenset, "str": text}
BUILTINS = OWN | PYTHON


def called(name: str, arguments: list[Any]) -> Any:
    """Return what a builtin gives, if it is given nothing that would take long or have no order."""
    for argument in arguments:
        if isinstance(argument, range) and name != "range" and len(argument) > MOST_TEXT:
            raise ValueError(f"{name} of a range of {len(argument)}")
        if isinstance(argument, frozenset) and name in _ORDERED:
            raise TypeError(f"{name} of a set, which has no order")
    return BUILTINS[name](*arguments)
