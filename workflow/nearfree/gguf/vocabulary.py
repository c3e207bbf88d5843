"""Vocabularies of GGUF files: whether two models mean the same tokens by the same ids."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from nearfree.errors import ConfigError
from nearfree.gguf.reader import read_header

_TOKENS, _MODEL = "tokenizer.ggml.tokens", "tokenizer.ggml.model"
_FEW_MORE, _FIRST = 128, 5
"""By how many tokens vocabularies may differ at their ends, where one is padded further, and the
first id whose texts have to be the same. Source: llama.cpp, common/speculative.cpp,
SPEC_VOCAB_MAX_SIZE_DIFFERENCE, SPEC_VOCAB_CHECK_START_TOKEN_ID and
common_speculative_are_compatible."""


def refuse_another_vocabulary(target: Path, draft: Path, *, padded: bool) -> None:
    """Raise ConfigError unless a draft model has the tokens of the model that it drafts for.

    A file that has none written down is of another vocabulary than any.

    Parameters
    ----------
    padded
        Whether llama.cpp's rule holds: texts begin and end with the same tokens, and vocabularies
        may differ in their first ids, and by a few tokens more or fewer at their ends.
    """
    own, drafts = (read_header(path, whole=(_TOKENS,)).metadata for path in (target, draft))
    reasons = list(_differences(own, drafts, padded=padded))
    if reasons:
        raise ConfigError(
            f"{draft.name} has another vocabulary than {target.name}, for which it would draft: "
            f"{'; '.join(reasons)}",
            remedy="Give a draft model of the same family, with the same tokenizer",
        )


def _differences(
    own: Mapping[str, Any], drafts: Mapping[str, Any], *, padded: bool
) -> Iterator[str]:
    """Yield how a draft model's vocabulary differs so that its tokens are others."""
    if own.get(_MODEL) != drafts.get(_MODEL):
        yield f"{_MODEL} is {drafts.get(_MODEL)!r:.60}, not {own.get(_MODEL)!r:.60}"
    for mark in ("bos", "eos") if padded else ():
        yield from _marked(own, drafts, mark)
    one, other = own.get(_TOKENS), drafts.get(_TOKENS)
    if not isinstance(one, list | tuple) or not isinstance(other, list | tuple):
        yield f"{_TOKENS} is not in both files"
        return
    if abs(len(one) - len(other)) > (_FEW_MORE if padded else 0):
        yield f"it has {len(other):,} tokens, not {len(one):,}"
    first = _FIRST if padded else 0
    both = enumerate(zip(one[first:], other[first:], strict=False), first)
    unlike = next((f"{at} is {b!r:.60}, not {a!r:.60}" for at, (a, b) in both if a != b), None)
    if unlike:
        yield f"token {unlike}"


def _marked(own: Mapping[str, Any], drafts: Mapping[str, Any], mark: str) -> Iterator[str]:
    """Yield which token texts begin or end with where both files say it, and not the same."""
    added, number = f"tokenizer.ggml.add_{mark}_token", f"tokenizer.ggml.{mark}_token_id"
    for key in (added, number) if own.get(added) else (added,):
        values = own.get(key), drafts.get(key)
        if None not in values and values[0] != values[1]:
            yield f"{key} is {values[1]!r:.60}, not {values[0]!r:.60}"
