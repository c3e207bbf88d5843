"""Texts of others on a terminal: one line, and nothing that the terminal acts on."""

import ast

from hypothesis import given
from hypothesis import strategies as st
from nearfree.errors import printable


@given(text=st.text(st.characters(exclude_characters="\\'", exclude_categories=())))
def test_any_text_is_one_line_that_says_it(text: str) -> None:
    """Whatever a text holds, it is shown as printable text from which it can be told again."""
    shown = printable(text)
    assert shown.isprintable()
    assert len(shown.encode().splitlines()) <= 1
    assert ast.literal_eval(f"'{shown}'") == text
