"""Bundles: a repository's files from an npm package; others are refused."""

import os
import re
import subprocess
from pathlib import Path

import pytest
from nearfree.errors import SourceError
from nearfree.sources.fetching import bundle as bundles
from nearfree.sources.fetching.bundle import fetch_bundled, is_bundled, read_bundle
from nearfree.sources.fetching.cache import Cache
from nearfree.sources.fetching.fetch import fetch

from sources.fetching.indexserver import Server, make_sdist, server
from sources.fetching.test_npm import integrity

__all__ = ["server"]

RULE = "ggml/src/rule.cpp"


def git(folder: Path, *words: str) -> None:
    """Run git without the user's settings."""
    who = {
        f"GIT_{role}_{what}": "a" for role in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")
    }
    alone = {
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_CONFIG_NOSYSTEM": "1",
        "PATH": os.environ["PATH"],
    }
    subprocess.run(["git", "-C", str(folder), *words], check=True, capture_output=True,
                   env=alone | who)  # fmt: skip


def make_bundle(folder: Path, files: dict[str, str], link: str | None = None) -> bytes:
    """Return a bundle of one commit."""
    folder.mkdir()
    git(folder, "init", "--quiet")
    for path, text in files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    if link:
        (folder / link).symlink_to("/etc/passwd")
    git(folder, "add", "-A")
    git(folder, "commit", "--quiet", "-m", "all")
    git(folder, "bundle", "create", "--quiet", "--version=2", "bundle", "HEAD")
    return (folder / "bundle").read_bytes()


@pytest.fixture
def raw(tmp_path: Path) -> bytes:
    """Return a bundle with a rule and another file."""
    return make_bundle(tmp_path / "made", {RULE: "int rule = 4;\n", "src/other.cpp": "x"})


def test_the_wanted_files_of_a_bundle(raw: bytes) -> None:
    """A bundle gives its commit and the files that match."""
    commit, files = read_bundle(raw, re.compile("ggml/.*"), "demo 1.0")
    assert re.fullmatch("[0-9a-f]{40}", commit)
    assert files == {RULE: b"int rule = 4;\n"}


def test_settings_of_the_user_do_not_count(
    raw: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hooks and settings of the user's git are not used."""
    hooks = tmp_path / "hooks"
    hooks.mkdir()
    (hooks / "reference-transaction").write_text("#!/bin/sh\nexit 1\n")
    (hooks / "reference-transaction").chmod(0o755)
    settings = tmp_path / "gitconfig"
    settings.write_text(f"[core]\n\thooksPath = {hooks}\n")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(settings))
    assert read_bundle(raw, re.compile(RULE), "demo 1.0")[1]


def test_a_damaged_bundle_is_refused(raw: bytes) -> None:
    """Other bytes, a part of a bundle, or a changed byte are refused."""
    changed = bytearray(raw)
    changed[len(raw) - 40] ^= 1
    for bad in (b"", b"# v2 git bundle\n", raw[: len(raw) // 2], bytes(changed)):
        with pytest.raises(SourceError, match=r"demo 1\.0"):
            read_bundle(bad, re.compile(".*"), "demo 1.0")


def test_a_wanted_link_is_refused(tmp_path: Path) -> None:
    """A wanted file that is a link is refused; one that nobody wants does not matter."""
    linked = make_bundle(tmp_path / "linked", {RULE: ""}, link="ggml/link")
    assert read_bundle(linked, re.compile(RULE), "demo 1.0")[1] == {RULE: b""}
    with pytest.raises(SourceError, match=r"'ggml/link' is no plain file"):
        read_bundle(linked, re.compile("ggml/.*"), "demo 1.0")


def test_a_name_that_is_no_text_is_refused(tmp_path: Path) -> None:
    """A wanted file whose name is no UTF-8 is refused; one that nobody wants does not matter."""
    odd = make_bundle(tmp_path / "odd", {RULE: "", os.fsdecode(b"ggml/\xff.cpp"): ""})
    assert read_bundle(odd, re.compile(RULE), "demo 1.0")[1] == {RULE: b""}
    with pytest.raises(SourceError, match=r"demo 1\.0: 'ggml/.*\.cpp' is no plain file"):
        read_bundle(odd, re.compile("ggml/.*"), "demo 1.0")


def test_a_long_file_is_refused(raw: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wanted file over the limit is refused before it is read."""
    monkeypatch.setattr(bundles, "MEMBER_LIMIT", 5)
    with pytest.raises(SourceError, match="at most 5 bytes"):
        read_bundle(raw, re.compile(RULE), "demo 1.0")


def serve(server: Server, monkeypatch: pytest.MonkeyPatch, raw: bytes, patch: str) -> None:
    """Serve a package with a bundle and a patch."""
    monkeypatch.setenv("npm_config_registry", f"{server.url}/simple")
    server.type = "application/json"
    packed = make_sdist(
        ("package/llama/gitRelease.bundle", raw), ("package/llama/patches/a.diff", patch.encode())
    )
    dist = f'{{"tarball": "/files/x.tgz", "integrity": "{integrity(packed)}"}}'
    server.pages["node-llama-cpp"] = f'{{"versions": {{"3.0.0": {{"dist": {dist}}}}}}}'
    server.files["x.tgz"] = packed


def test_a_release_comes_in_a_bundle(
    server: Server, monkeypatch: pytest.MonkeyPatch, raw: bytes, tmp_path: Path
) -> None:
    """The release is known by its rules' name, with its patches, and then cached."""
    patch = "diff --git a/src/other.cpp b/src/other.cpp\n--- a/src/other.cpp\n"
    serve(server, monkeypatch, raw, patch)
    cache = Cache(tmp_path / "cache")
    source = fetch("llama_cpp", "3.0.0", RULE, cache=cache)
    assert source.text(RULE) == "int rule = 4;\n"
    assert source.paths() == [RULE, "llama/patches/a.diff"]
    assert (source.record.package, source.record.version) == ("llama-cpp", "3.0.0")
    assert re.fullmatch(
        r"node-llama-cpp-3\.0\.0\.tgz: llama/gitRelease\.bundle at [0-9a-f]{40}",
        source.record.artefact,
    )
    assert fetch("llama-cpp", "3.0.0", RULE, cache=cache, offline=True) == source


def test_a_patch_of_a_file_with_rules_is_refused(
    server: Server, monkeypatch: pytest.MonkeyPatch, raw: bytes, tmp_path: Path
) -> None:
    """A release that patches a file with rules is refused."""
    serve(server, monkeypatch, raw, f"--- a/{RULE}\n+++ b/{RULE}\n@@ -1 +1 @@\n")
    with pytest.raises(SourceError, match=rf"llama/patches/a\.diff changes {RULE} before"):
        fetch_bundled("llama-cpp", "3.0.0", RULE, cache=Cache(tmp_path / "cache"))


def test_the_first_number_says_which_package_it_is() -> None:
    """From 1 on a version is the prebuilt library's, below the Python package's."""
    assert all(is_bundled("llama-cpp", version) for version in ("3.22.1", "3rc1", "3b1", "4+x"))
    assert is_bundled("llama-cpp-cuda", "3.22.1")
    assert not is_bundled("llama-cpp", "0.3.36")
    assert not is_bundled("vllm", "1.0")
