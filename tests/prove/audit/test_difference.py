"""A difference between a table and its recomputed rows, as one line."""

import pytest
from nearfree.prove.audit.recompute import Difference


@pytest.mark.parametrize(
    ("difference", "text"),
    [
        (
            Difference("boundaries:1", "n_max", 8.125, None),
            "boundaries:1 says n_max = 8.125, and the log gives None",
        ),
        (
            Difference("boundaries:1", "", "is missing, and the log gives it", None),
            "boundaries:1 is missing, and the log gives it",
        ),
    ],
)
def test_a_difference_names_its_row(difference: Difference, text: str) -> None:
    """A cell is named with both values, a whole row with what is wrong with it."""
    assert str(difference) == text
