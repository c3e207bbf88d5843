"""Amounts on the command line: what they may be, and what is said of others."""

import argparse
import math


def epsilon(text: str) -> float | None:
    """Return a tolerance, None for `all`."""
    if text == "all":
        return None
    value = _number(text)
    if not 0 < value < 1:
        raise argparse.ArgumentTypeError(f"{text} is not between 0 and 1, nor `all`")
    return value


def size(text: str) -> float:
    """Return a size in MB, not negative."""
    value = _number(text)
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"{text} is no size: give a number of MB, 0 or more")
    return value


def tokens(text: str) -> float:
    """Return a number of tokens a forward, above 0."""
    value = _number(text)
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{text} is no number of tokens above 0")
    return value


def count(text: str) -> int:
    """Return a number of positions N, 1 or more."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no N: give a whole number, 1 or more")
    return int(text)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no number") from None
