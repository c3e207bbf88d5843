"""The FlashInfer backend that SGLang's paged wrappers request."""

import pytest
from nearfree.errors import SourceError
from nearfree.sources.backends.sglang import folders, forced_backend
from nearfree.sources.language.reading import mechanism_rule

from sources.language.rules import function

PATH = "sglang/srt/layers/attention/flashinfer_backend.py"
TEXT = """
class Attention:
    def __init__(self):
        self.kind = "fa2"
        self.prefill = BatchPrefillWithPagedKVCacheWrapper(buffer, backend=self.kind)
        self.decode = BatchDecodeWithPagedKVCacheWrapper(buffer, backend="fa2")
        self.ragged = BatchPrefillWithRaggedKVCacheWrapper(buffer, backend="auto")
"""


@pytest.mark.parametrize(
    ("text", "says", "places"),
    [
        (TEXT, "all paged FlashInfer wrappers are asked for fa2", 2),
        (
            TEXT.replace(', backend="fa2")', ")"),
            "1 of 2 paged FlashInfer wrappers are asked for fa2",
            1,
        ),
        (
            TEXT.replace('backend="fa2"', 'backend="fa3"'),
            "all paged FlashInfer wrappers are asked for fa2 or fa3",
            2,
        ),
        (
            TEXT + "        self.kind = choose()\n",
            "1 of 2 paged FlashInfer wrappers are asked for fa2",
            1,
        ),
        ("x = 1", "absent", 0),
    ],
)
def test_only_a_plain_name_counts(text: str, says: str, places: int) -> None:
    """A text, or an attribute that is set to one text only, counts; else the backend is open."""
    rule = mechanism_rule(forced_backend({PATH: text}), "sglang", "1.0")
    assert rule.branches[0].value == repr(says)
    assert len(rule.branches[0].quotes) == places


def test_folders_that_are_listed_twice_are_refused() -> None:
    """A second list of versions is refused."""
    text = 'def f():\n    supported_triton_versions = ["3.4.0", "3.3.1"]\n    return look()'
    (branch,) = folders(function(text))
    assert branch.statement == "3.4.0 3.3.1"
    with pytest.raises(SourceError, match="2 times"):
        folders(
            function(text.replace("    return", "    supported_triton_versions = []\n    return"))
        )
