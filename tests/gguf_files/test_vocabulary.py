"""Vocabularies: the same tokens under the same ids, or no drafting."""

from pathlib import Path

import pytest
from nearfree.errors import ConfigError
from nearfree.gguf.vocabulary import refuse_another_vocabulary

from gguf_files.files import array, gguf, scalar, string


def write(path: Path, words: list[str] | None, kind: str = "gpt2", **marks: bool | int) -> Path:
    """Write a file with a vocabulary, or without one."""
    metadata = {"general.architecture": string("llama"), "tokenizer.ggml.model": string(kind)}
    metadata |= {
        f"tokenizer.ggml.{name}": scalar("bool" if isinstance(value, bool) else "uint32", value)
        for name, value in marks.items()
    }
    if words is not None:
        metadata["tokenizer.ggml.tokens"] = array("text", words)
    path.write_bytes(gguf(list(metadata.items())))
    return path


@pytest.mark.parametrize("padded", [True, False])
def test_the_same_words_are_the_same_vocabulary(tmp_path: Path, *, padded: bool) -> None:
    """Vocabularies are compared completely, however long they are."""
    words = [f"w{n}" for n in range(5000)]
    target = write(tmp_path / "target.gguf", words)
    refuse_another_vocabulary(target, write(tmp_path / "draft.gguf", words), padded=padded)
    other = write(tmp_path / "other.gguf", [*words[:-1], "x"])
    with pytest.raises(
        ConfigError,
        match=r"other\.gguf has another vocabulary than target\.gguf, .*: token 4999 is 'x', not",
    ):
        refuse_another_vocabulary(target, other, padded=padded)


@pytest.mark.parametrize(
    ("words", "kind"), [(["a", "b"], "gpt2"), (["b", "a", "c"], "gpt2"), (None, "gpt2"),
                        (["a", "b", "c"], "llama")],
)  # fmt: skip
def test_fewer_other_and_no_words_are_another(
    tmp_path: Path, words: list[str] | None, kind: str
) -> None:
    """Fewer tokens, another order, no tokens or another tokenizer make another vocabulary."""
    target = write(tmp_path / "target.gguf", ["a", "b", "c"])
    draft = write(tmp_path / "draft.gguf", words, kind)
    with pytest.raises(ConfigError, match="another vocabulary"):
        refuse_another_vocabulary(target, draft, padded=False)


WORDS = [f"w{n}" for n in range(300)]


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (WORDS[:-128], None),
        (WORDS[:-129], "it has 171 tokens, not 300"),
        ([*WORDS, *(f"[PAD{n}]" for n in range(300, 428))], None),
        ([*WORDS, *(f"[PAD{n}]" for n in range(300, 429))], "it has 429 tokens, not 300"),
        (["", "", "", "", "", *WORDS[5:]], None),
        ([*WORDS[:5], "x", *WORDS[6:]], "token 5 is 'x', not 'w5'"),
    ],
    ids=["128 fewer", "129 fewer", "128 more", "129 more", "first ids", "another"],
)
def test_a_vocabulary_may_be_padded_as_llama_cpp_lets_it(
    tmp_path: Path, words: list[str], reason: str | None
) -> None:
    """Up to 128 more tokens, and differences below id 5, are accepted by llama.cpp only."""
    target = write(tmp_path / "target.gguf", WORDS)
    draft = write(tmp_path / "draft.gguf", words)
    if reason is None:
        refuse_another_vocabulary(target, draft, padded=True)
    else:
        with pytest.raises(ConfigError, match=reason):
            refuse_another_vocabulary(target, draft, padded=True)
    with pytest.raises(ConfigError, match="another vocabulary"):
        refuse_another_vocabulary(target, draft, padded=False)


@pytest.mark.parametrize(
    ("own", "drafts", "reason"),
    [
        ({"add_bos_token": True}, {"add_bos_token": False}, "add_bos_token is False, not True"),
        (
            {"add_bos_token": True, "bos_token_id": 1},
            {"add_bos_token": True, "bos_token_id": 2},
            "bos_token_id is 2, not 1",
        ),
        ({"bos_token_id": 1}, {"bos_token_id": 2}, None),
        ({"add_eos_token": False, "eos_token_id": 1}, {"eos_token_id": 2}, None),
    ],
)
def test_texts_begin_and_end_with_the_same_tokens(
    tmp_path: Path, own: dict[str, int], drafts: dict[str, int], reason: str | None
) -> None:
    """Whether a token is put at an end, and which, where it is; what is not put counts nothing."""
    target = write(tmp_path / "target.gguf", WORDS, **own)
    draft = write(tmp_path / "draft.gguf", WORDS, **drafts)
    if reason is None:
        refuse_another_vocabulary(target, draft, padded=True)
    else:
        with pytest.raises(ConfigError, match=reason):
            refuse_another_vocabulary(target, draft, padded=True)
