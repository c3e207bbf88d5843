"""Labels of settings: which fields they show, and which they leave out."""

from typing import get_args

import pytest
from nearfree.core.label import Style, label, subject

ENGINE = {"module": "engine", "model": "tiny", "backend": "llama_cpp", "release": "1.0"}


@pytest.mark.parametrize("style", get_args(Style))
def test_repacking_is_shown_when_true_and_when_false(style: Style) -> None:
    """Whether weights are repacked distinguishes two settings, so both values have words."""
    labels = [label({"repack": value}, ["repack"], style) for value in (True, False, None)]
    assert labels == ["repacked", "not repacked", ""]


@pytest.mark.parametrize("name", ["cuda_graph", "gated"])
def test_other_flags_are_shown_where_they_are_true(name: str) -> None:
    """A flag with a default, or of a shape, is left out where it is false."""
    assert label({name: True}, [name])
    assert label({name: False}, [name]) == ""


def test_an_engine_s_row_names_its_build_and_file() -> None:
    """Two rows that differ in release, file type or repacking have different audit lines."""
    rows = [
        ENGINE | {"file_type": kind, "repack": repack, "release": release}
        for kind in ("q4_1", "q8_0") for repack in (True, False) for release in ("1.0", "2.0")
    ]  # fmt: skip
    assert len({subject(row) for row in rows}) == len(rows)
