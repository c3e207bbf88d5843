"""The report's glossary explains the words of the page."""

import pytest
from nearfree.core.predictors import PREDICTORS
from nearfree.derive.claims.judge import VERDICTS
from nearfree.derive.tables.boundaries import BOUNDARIES, SENSITIVITY
from nearfree.show.page.glossary import WORDS
from nearfree.show.page.headline import FACTS_PREFERENCE

from show.page.page import Page

pytestmark = pytest.mark.slow

EXPLAINED = {word.strip() for words, _ in WORDS for word in words.split(",")}
SHOWN = [
    *VERDICTS,
    *(BOUNDARIES.body["verdict"].one_of or ()),
    *(SENSITIVITY.body["verdict"].one_of or ()),
    *PREDICTORS,
    *FACTS_PREFERENCE,
    *("N_max", "baseline", "tolerance", "interval", "robust", "fragile", "hit", "refused"),
    *("b", "L", "k", "E", "rho", "balanced", "skewed", "router", "M_moe", "M_attn"),
    *("yes", "no", "open", "in sample", "out of sample"),
]


@pytest.mark.parametrize("word", SHOWN)
def test_each_word_is_explained(word: str) -> None:
    """Each verdict, predictor, fact and letter has a line."""
    assert word.replace("_", " ") in EXPLAINED or word in EXPLAINED


def test_the_page_has_the_words(read: Page) -> None:
    """The glossary is a section with a link in the navigation."""
    assert "words" in read.ids
    assert "#words" in read.links
    assert all(words in read.text and meaning in read.text for words, meaning in WORDS)
