"""Settings in words: what is told of a setting, and what is left out."""

from typing import get_args

import pytest
from nearfree.core.label import Style, label, subject

ENGINE = {"module": "engine", "model": "tiny", "backend": "llama_cpp", "release": "1.0"}


@pytest.mark.parametrize("style", get_args(Style))
def test_a_choice_of_a_call_is_told_either_way(style: Style) -> None:
    """Whether weights are repacked tells two settings apart, so both answers have words."""
    told = [label({"repack": value}, ["repack"], style) for value in (True, False, None)]
    assert told == ["repacked", "not repacked", ""]


@pytest.mark.parametrize("name", ["cuda_graph", "gated"])
def test_other_flags_are_told_where_they_hold(name: str) -> None:
    """A flag with a default, or of a shape, is left out where it does not hold."""
    assert label({name: True}, [name])
    assert label({name: False}, [name]) == ""


def test_an_engine_s_row_names_its_build_and_file() -> None:
    """Two rows that differ in release, file type or repacking have different audit lines."""
    rows = [
        ENGINE | {"file_type": kind, "repack": repack, "release": release}
        for kind in ("q4_1", "q8_0") for repack in (True, False) for release in ("1.0", "2.0")
    ]  # fmt: skip
    assert len({subject(row) for row in rows}) == len(rows)
