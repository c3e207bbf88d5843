"""Prompts: halves by kind, and files that hold none."""

import json
from collections import Counter
from pathlib import Path

import pytest
from nearfree.config.prompts import LARGEST, MOST, read_prompts, shipped_prompts
from nearfree.errors import ConfigError


def write(path: Path, *lines: object) -> Path:
    """Write a file of prompts."""
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return path


def test_half_of_each_kind_of_the_shipped_prompts_is_held_out() -> None:
    """Copying, code and free text each have as many prompts for choosing as for reporting."""
    prompts = read_prompts(shipped_prompts())
    counts = Counter((prompt.kind, prompt.held_out) for prompt in prompts)
    assert {kind for kind, _ in counts} == {"copying", "code", "text"}
    assert set(counts.values()) == {3}


def test_every_second_prompt_of_a_kind_is_held_out(tmp_path: Path) -> None:
    """Halves are by kind, in the file's order; the default kind is `own`."""
    lines = [{"prompt": f"p{n}", "kind": "ab"[n % 2]} for n in range(5)] + [{"prompt": "x"}] * 0
    lines.append({"prompt": "again", "kind": "b"})
    prompts = read_prompts(write(tmp_path / "p.jsonl", *lines))
    halves = [(prompt.text, prompt.held_out) for prompt in prompts]
    assert halves == [
        ("p0", False), ("p1", False), ("p2", True), ("p3", True), ("p4", False), ("again", False),
    ]  # fmt: skip
    assert read_prompts(write(tmp_path / "q.jsonl", {"prompt": "a"}, {"prompt": "b"}))[0].kind == (
        "own"
    )


def test_a_plan_has_the_digest_of_a_prompt_and_not_its_text(tmp_path: Path) -> None:
    """A plan goes into the log: it holds the digest of a prompt alone."""
    prompt, _ = read_prompts(write(tmp_path / "p.jsonl", {"prompt": "secret"}, {"prompt": "b"}))
    assert "secret" not in repr(prompt.part)
    assert len(prompt.part.sha256) == 64


@pytest.mark.parametrize(
    ("raw", "what"),
    [
        (b"", "holds no prompt"),
        (b"\n\n", "holds no prompt"),
        (b"{}\n", "prompt 1 is no prompt"),
        (b'{"prompt": ""}\n', "prompt 1 is no prompt"),
        (b'{"prompt": "  "}\n{"prompt": "b"}\n', "prompt 1 is blank"),
        (b'{"prompt": "a\\u0000b"}\n', "null character"),
        (b'{"prompt": "a", "other": 1}\n', "prompt 1 is no prompt"),
        (b'{"prompt": "a", "kind": "../x"}\n', "prompt 1 is no prompt"),
        (b'{"prompt": "a"}\n', "only one prompt of the kind own"),
        (b'{"prompt": "a", "kind": "all"}\n', "of the kind all, which stands for all prompts"),
        (b'{"prompt": "a"}\n{"prompt": "a"}\n', "prompt 2 is a duplicate"),
        (b"[" * 100_000, "prompt 1 is no prompt"),
        (b"\xff\xfe", "is no UTF-8"),
        (b"x" * (LARGEST + 1), f"has more than {LARGEST} bytes"),
        (b'{"prompt": "a"}\n' * (MOST + 1), f"holds {MOST + 1} prompts"),
    ],
)
def test_a_file_that_holds_no_prompts_is_refused(tmp_path: Path, raw: bytes, what: str) -> None:
    """Each mistake is one message that names the file."""
    path = tmp_path / "p.jsonl"
    path.write_bytes(raw)
    with pytest.raises(ConfigError, match=what) as error:
        read_prompts(path)
    assert str(path) in str(error.value)


def test_a_folder_and_a_file_that_is_missing_are_refused(tmp_path: Path) -> None:
    """A file that cannot be read is refused with the reason."""
    for path in (tmp_path, tmp_path / "none"):
        with pytest.raises(ConfigError, match="cannot be read"):
            read_prompts(path)
