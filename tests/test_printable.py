"""Texts of others on a terminal: one line, and nothing that the terminal acts on."""

import ast
import json

from hypothesis import given
from hypothesis import strategies as st
from nearfree.errors import printable, printable_json


@given(text=st.text(st.characters(exclude_characters="\\'", exclude_categories=())))
def test_any_text_is_one_line_that_says_it(text: str) -> None:
    """Whatever a text holds, it is shown as printable text from which it can be told again."""
    shown = printable(text)
    assert shown.isprintable()
    assert len(shown.encode().splitlines()) <= 1
    assert ast.literal_eval(f"'{shown}'") == text


@given(text=st.text())
def test_json_for_a_terminal_is_the_same_json(text: str) -> None:
    """Whatever texts JSON holds, it says the same, line by line, with nothing to act on."""
    shown = printable_json(json.dumps([text, {text: 1}], ensure_ascii=False, indent=2))
    assert json.loads(shown) == [text, {text: 1}]
    assert all(line.isprintable() for line in shown.split("\n"))
