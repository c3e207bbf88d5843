"""Extraction: what a hostile or broken release gets is a refusal that names it."""

from pathlib import Path

import pytest
from nearfree.errors import MOVED, SourceError
from nearfree.sources import extraction
from nearfree.sources.extraction import extract
from nearfree.sources.fetching.cache import Cache

from sources.fetching.indexserver import Entry, Server, make_wheel, server
from sources.moe_release import FOLDER, PATH, TEXT, TUNED

__all__ = ["server"]
WHEEL = "vllm-1.0-py3-none-any.whl"


def published(server: Server, text: str, *, more: str | None = None) -> None:
    """Put a release on the index, with a rule file of a text."""
    entries = [Entry(PATH, text.encode())]
    entries += [Entry(path, b'{"1": {"BLOCK_SIZE_M": 16}}') for path in TUNED]
    if more is not None:
        entries.append(Entry(f"{FOLDER}/config.py", more.encode()))
    server.put(WHEEL, make_wheel(*entries))


def test_a_release_is_read_from_the_index(server: Server, tmp_path: Path) -> None:
    """Files, rules and tuned files of one release; a second time from the cache alone."""
    published(server, TEXT)
    cache = Cache(tmp_path / "cache")
    extraction = extract("vllm", "1.0", cache=cache)
    assert extraction.by_name()["block_size_m"].rule.points > 1000
    assert [file.verified for file in extraction.fetched] == ["member", "member"]
    assert len(extraction.tuned) == 1
    assert extract("vllm", "1.0", cache=cache, offline=True) == extraction


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("def get_default_config(", "def other(", "get_default_config must be defined once"),
        ("if M <= 40:", "if M <= forty:", "the name 'forty' is unknown"),
        ("if M <= 40:", "if M <= limits.small:", "limits"),
        ("if M <= 40:", "if open('x').read():", "open"),
        ("if M <= 40:", "if __import__('os').system('touch made'):", "__import__"),
        ("if M <= 40:", "if (M := 3) <= 40:", "outside the known set"),
        ("        size = 16", "        size = [n for n in (16,)][0]", "outside the known set"),
        ("        size = 16", "        while True: size = 16", "outside the known set"),
        ("        size = 16", "        size = 16 +", "is not Python"),
        ("        size = 16", "        try:\n            size = 16\n        finally: pass", "Try"),
        ("@functools.lru_cache\n", "@patched\n", "decorated by patched"),
        ("        size = 16", "        size = 9 ** 9 ** 9", "outside the known set"),
        ("        size = 16", "        size = 1 << 4096", "too large"),
    ],
)
def test_what_is_not_known_is_refused_by_name(
    server: Server, tmp_path: Path, old: str, new: str, reason: str
) -> None:
    """The refusal names package, version, file and reason; nothing is run, and nothing kept."""
    assert TEXT.count(old) == 1
    published(server, TEXT.replace(old, new))
    with pytest.raises(SourceError) as refused:
        extract("vllm", "1.0", cache=Cache(tmp_path / "cache"))
    assert refused.value.what.startswith("vllm 1.0: ")
    assert reason in refused.value.what
    if "must be defined" not in reason:
        assert PATH in refused.value.what
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cache"]
    assert not (tmp_path / "cache" / "results").exists()


def test_a_part_that_a_reader_looks_for_in_vain_is_a_refusal(
    server: Server, tmp_path: Path
) -> None:
    """Where a reader meets nothing where it looks, the release is named, and no error escapes."""
    name = "VLLM_FUSED_MOE_CHUNK_SIZE"  # without the default that is looked for behind it
    options = f'variables = {{"{name}": lambda: int(os.getenv("{name}"))}}\n'
    entries = Entry(PATH, TEXT.encode()), Entry("vllm/envs.py", options.encode())
    server.put(WHEEL, make_wheel(*entries))
    with pytest.raises(SourceError, match=r"^vllm 1\.0: .*not of the known form") as refused:
        extract("vllm", "1.0", cache=Cache(tmp_path / "cache"))
    assert refused.value.remedy == MOVED


def test_two_definitions_are_refused(server: Server, tmp_path: Path) -> None:
    """A name that is defined twice stands for nothing, and both places are named."""
    again = TEXT[TEXT.index("def get_default_config") : TEXT.index("def try_get")]
    published(server, TEXT, more=again)
    with pytest.raises(SourceError, match=r"config\.py:1, .*fused_moe\.py:\d+"):
        extract("vllm", "1.0", cache=Cache(tmp_path / "cache"))


def test_a_result_of_other_code_is_not_believed(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kept result carries the digest of the code that made it."""
    published(server, TEXT)
    cache = Cache(tmp_path / "cache")
    extract("vllm", "1.0", cache=cache)
    results = {*(tmp_path / "cache" / "results").iterdir()}
    monkeypatch.setattr(extraction, "_code_digest", lambda _: "0" * 16)
    extract("vllm", "1.0", cache=cache, offline=True)
    made = {*(tmp_path / "cache" / "results").iterdir()} - results
    assert len(made) == len(results)
    assert all("0" * 16 in path.name for path in made)


def test_rules_that_were_read_are_not_read_again_for_tuned_files(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is kept of the rules serves the whole extraction, and the other way round."""
    published(server, TEXT)
    cache = Cache(tmp_path / "cache")
    rules = extract("vllm", "1.0", cache=cache, tuned=False)
    monkeypatch.setattr(extraction, "_rules", None)
    with_tuned = extract("vllm", "1.0", cache=cache)
    assert with_tuned.rules == rules.rules
    assert with_tuned.fetched[: len(rules.fetched)] == rules.fetched
    assert extract("vllm", "1.0", cache=cache, tuned=False).tuned == with_tuned.tuned
