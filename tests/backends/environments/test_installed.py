"""What is installed: as import finds it, whoever installed it."""

import hashlib
import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

import pytest
from nearfree.backends.environments.lock import (
    environment_sha256,
    installed,
    normalized,
)


def put(folder: Path, name: str, version: str) -> None:
    """Install the facts of a distribution into a folder."""
    about = folder / f"{name}-{version}.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")


def test_versions_are_those_that_are_imported(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a distribution that is there twice, the one further ahead on the path counts."""
    for folder, version in (("a", "1.0"), ("b", "2.0")):
        put(tmp_path / folder, "Some_Thing.x", version)
        monkeypatch.syspath_prepend(str(tmp_path / folder))
    assert installed()["some-thing-x"] == metadata.version("some-thing-x") == "2.0"
    assert {name: metadata.version(name) for name in installed()} == installed()


@pytest.mark.parametrize("imported", ["importlib.metadata", "importlib_metadata"])
def test_a_folder_without_metadata_is_no_distribution(tmp_path: Path, imported: str) -> None:
    """What an installation that was killed left behind has neither name nor version.

    So it is, too, after an import of the backport, which answers for the standard library then.
    """
    (tmp_path / "half-1.0.dist-info").mkdir()
    put(tmp_path, "whole", "1.0")
    code = f"import {imported}; from nearfree.backends.environments.lock import installed as i"
    process = subprocess.run(
        [sys.executable, "-c", f"{code}; print(*i())"],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *sys.path])},
        capture_output=True,
        text=True,
        check=True,
    )
    names = process.stdout.split()
    assert "whole" in names
    assert "half" not in names
    assert set(names) == {"whole", *installed()}


def test_a_backport_may_answer_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """Older versions of the backport return None for a folder without metadata."""
    monkeypatch.setattr(metadata, "distributions", lambda: [SimpleNamespace(metadata=None)])
    assert installed() == {}


def test_the_digest_is_over_all_that_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One more distribution is another digest; the order on the path is of no account."""
    before = environment_sha256()
    lines = [f"{normalized(d.name)}=={d.version}\n" for d in metadata.distributions()]
    assert before == hashlib.sha256("".join(sorted(set(lines))).encode()).hexdigest()
    digests = set()
    for order in ("ab", "ba"):
        with monkeypatch.context() as patch:
            for name in order:
                if not (tmp_path / name).exists():
                    put(tmp_path / name, name, "1.0")
                patch.syspath_prepend(str(tmp_path / name))
            digests.add(environment_sha256())
    assert len(digests) == 1
    assert before not in digests
