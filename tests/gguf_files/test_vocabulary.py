"""Vocabularies: the same tokens under the same ids, or no drafting."""

from pathlib import Path

import pytest
from nearfree.errors import ConfigError
from nearfree.gguf.vocabulary import refuse_another_vocabulary

from gguf_files.files import array, gguf, string


def write(path: Path, words: list[str] | None, kind: str = "gpt2") -> Path:
    """Write a file with a vocabulary, or without one."""
    metadata = {"general.architecture": string("llama"), "tokenizer.ggml.model": string(kind)}
    if words is not None:
        metadata["tokenizer.ggml.tokens"] = array("text", words)
    path.write_bytes(gguf(list(metadata.items())))
    return path


def test_the_same_words_are_the_same_vocabulary(tmp_path: Path) -> None:
    """However long it is: none of it is cut off before it is compared."""
    words = [f"w{n}" for n in range(5000)]
    target = write(tmp_path / "target.gguf", words)
    refuse_another_vocabulary(target, write(tmp_path / "draft.gguf", words))
    other = write(tmp_path / "other.gguf", [*words[:-1], "x"])
    with pytest.raises(ConfigError, match=r"other\.gguf has another vocabulary than target\.gguf"):
        refuse_another_vocabulary(target, other)


@pytest.mark.parametrize(
    ("words", "kind"), [(["a", "b"], "gpt2"), (["b", "a", "c"], "gpt2"), (None, "gpt2"),
                        (["a", "b", "c"], "llama")],
)  # fmt: skip
def test_fewer_other_and_no_words_are_another(
    tmp_path: Path, words: list[str] | None, kind: str
) -> None:
    """Fewer tokens, another order, no tokens, and another way to split text into them."""
    target = write(tmp_path / "target.gguf", ["a", "b", "c"])
    with pytest.raises(ConfigError, match="another vocabulary"):
        refuse_another_vocabulary(target, write(tmp_path / "draft.gguf", words, kind))
