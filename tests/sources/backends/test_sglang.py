"""Which FlashInfer backend SGLang's paged wrappers are asked for."""

import pytest
from nearfree.sources.backends.sglang import forced_backend
from nearfree.sources.language.reading import recorded

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
    """A text counts, and an attribute that is only ever set to one; all else is left open."""
    rule = recorded(forced_backend({PATH: text}), "sglang", "1.0")
    assert rule.branches[0].value == repr(says)
    assert len(rule.branches[0].quotes) == places
