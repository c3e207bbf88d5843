"""A refusal offers only alternatives that would be answered."""

import re
from typing import Any

import pytest
from nearfree.config.files import Config
from nearfree.derive.reference.answer import TimedQuestions
from nearfree.derive.reference.record import recorded_reference
from nearfree.derive.reference.siblings import chips
from nearfree.derive.work_model.constants import recorded_constants

from derive.questions import LOG, RESOLVER, ROOT
from derive.work_model.forms import INDEXER, SPARSE_LAYER, facts_of

CONSTANTS = recorded_constants(LOG)
REFERENCE = recorded_reference(LOG, chips(Config(ROOT / "config").platforms))
DECODED = {**SPARSE_LAYER, "api": "decode", "platform": "h100"}
NUMBERS = {**INDEXER, "backend": "vllm", "platform": "h100"}


def refusals(*questions: dict[str, Any]) -> dict[int, str]:
    """Return the reason of each question without T(N)."""
    timed_questions = TimedQuestions(facts_of(*questions), RESOLVER, CONSTANTS, reference=REFERENCE)
    return timed_questions.refusals()


def test_other_caches_are_named_and_answered() -> None:
    """Each cache format that a refusal names is answered."""
    messages = refusals({**DECODED, "kv_dtype": "int8"})[0]
    offered = re.findall(r"--kv-dtype (\w+)", messages)
    assert offered == ["bfloat16", "float8"]
    for cache in offered:
        fields = {} if cache == "bfloat16" else {"kv_dtype": cache}
        assert refusals({**DECODED, **fields}) == {}


@pytest.mark.parametrize("cache", [None, "float8"])
def test_a_cache_that_helps_nothing_is_not_offered(cache: str | None) -> None:
    """A cache format that would be refused as well is not named."""
    messages = refusals({**NUMBERS, "kv_dtype": cache})[0]
    assert messages == "no constants of indexer_logits in the log"
