"""Vocabularies of GGUF files: checks that two models have the same tokens under the same ids."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from nearfree.errors import ConfigError
from nearfree.gguf.reader import read_header

_TOKENS, _MODEL = "tokenizer.ggml.tokens", "tokenizer.ggml.model"
_MAX_PADDING, _FIRST = 128, 5
"""The number of tokens by which vocabularies may differ at their ends because of padding, and the
first id whose tokens must be equal. Source: llama.cpp, common/speculative.cpp,
SPEC_VOCAB_MAX_SIZE_DIFFERENCE, SPEC_VOCAB_CHECK_START_TOKEN_ID and
common_speculative_are_compatible."""


def refuse_another_vocabulary(target: Path, draft: Path, *, padded: bool) -> None:
    """Raise ConfigError unless a draft model has the tokens of its target model.

    A file without a vocabulary differs from any.

    Parameters
    ----------
    padded
        Whether llama.cpp's rule applies: the tokens that begin and end a text must be equal, but
        vocabularies may differ in their first ids, and by a few tokens at their ends.
    """
    target_metadata, draft_metadata = (
        read_header(path, whole=(_TOKENS,)).metadata for path in (target, draft)
    )
    reasons = list(_differences(target_metadata, draft_metadata, padded=padded))
    if reasons:
        raise ConfigError(
            f"{draft.name} has another vocabulary than {target.name}, for which it would draft: "
            f"{'; '.join(reasons)}",
            remedy="Give a draft model of the same family, with the same tokenizer",
        )


def _differences(
    target: Mapping[str, Any], draft: Mapping[str, Any], *, padded: bool
) -> Iterator[str]:
    """Yield the relevant differences between the vocabularies of a target and a draft model."""
    if target.get(_MODEL) != draft.get(_MODEL):
        yield f"{_MODEL} is {draft.get(_MODEL)!r:.60}, not {target.get(_MODEL)!r:.60}"
    for mark in ("bos", "eos") if padded else ():
        yield from _marked(target, draft, mark)
    target_tokens, draft_tokens = target.get(_TOKENS), draft.get(_TOKENS)
    if not isinstance(target_tokens, list | tuple) or not isinstance(draft_tokens, list | tuple):
        yield f"{_TOKENS} is not in both files"
        return
    if abs(len(target_tokens) - len(draft_tokens)) > (_MAX_PADDING if padded else 0):
        yield f"it has {len(draft_tokens):,} tokens, not {len(target_tokens):,}"
    first = _FIRST if padded else 0
    both = enumerate(zip(target_tokens[first:], draft_tokens[first:], strict=False), first)
    difference = next((f"{at} is {b!r:.60}, not {a!r:.60}" for at, (a, b) in both if a != b), None)
    if difference:
        yield f"token {difference}"


def _marked(target: Mapping[str, Any], draft: Mapping[str, Any], mark: str) -> Iterator[str]:
    """Yield differences in the token that begins (`bos`) or ends (`eos`) a text.

    Only keys that both files have are compared.
    """
    adds_key, id_key = f"tokenizer.ggml.add_{mark}_token", f"tokenizer.ggml.{mark}_token_id"
    for key in (adds_key, id_key) if target.get(adds_key) else (adds_key,):
        values = target.get(key), draft.get(key)
        if None not in values and values[0] != values[1]:
            yield f"{key} is {values[1]!r:.60}, not {values[0]!r:.60}"
