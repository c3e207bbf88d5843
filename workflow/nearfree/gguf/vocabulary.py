"""Vocabularies of GGUF files: whether two models mean the same tokens by the same ids."""

from pathlib import Path

from nearfree.errors import ConfigError
from nearfree.gguf.reader import read_header

_TOKENS, _MODEL = "tokenizer.ggml.tokens", "tokenizer.ggml.model"


def refuse_another_vocabulary(target: Path, draft: Path) -> None:
    """Raise ConfigError unless a draft model has the tokens of the model that it drafts for.

    A file that has none written down is of another vocabulary than any.
    """
    one, other = (
        [read_header(path, whole=(_TOKENS,)).metadata.get(key) for key in (_TOKENS, _MODEL)]
        for path in (target, draft)
    )
    if one != other or one[0] is None:
        raise ConfigError(
            f"{draft.name} has another vocabulary than {target.name}, for which it would draft",
            remedy="Give a draft model of the same family, with the same tokenizer",
        )
