"""Locks: what they pin, and whether an interpreter has that."""

from importlib import metadata
from pathlib import Path

import pytest
from nearfree.backends.environments import lock as installed_lock
from nearfree.backends.environments.lock import differences, lock_path, pins, require
from nearfree.errors import ConfigError, LockError

from backends.environments.test_installed import put

HASH = f"    --hash=sha256:{'0' * 64}\n"


@pytest.fixture
def lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Change to a project with the environment `tiny`, of which one package is installed."""
    put(tmp_path / "site", "thing", "2.0+cu130")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "envs").mkdir()
    path = tmp_path / "envs/tiny.lock"
    path.write_text(f"# by hand\nThing==2.0 \\\n{HASH}    # via other==9\n")
    return path


def test_a_lock_pins_the_packages_at_the_start_of_a_line(lock: Path) -> None:
    """Comments, hashes, extras and the spelling of a name are ignored."""
    lock.write_text(f"{lock.read_text()}a.B[x,y]==1.0 --hash=sha256:00\n  c==1\n#d==1\ne == 3\n")
    assert pins(lock) == {"thing": "2.0", "a-b": "1.0", "e": "3"}


def test_a_line_with_a_marker_binds_no_one(lock: Path) -> None:
    """A line that is for some machines only is left out, here as on those machines."""
    lock.write_text(f"thing==2.0\nother==1 ; sys_platform == 'win32' \\\n{HASH}more==1;x\n")
    assert pins(lock) == {"thing": "2.0"}


def test_a_local_label_is_no_other_version(lock: Path) -> None:
    """What a lock pins without a label may be installed with one, not the other way round."""
    assert differences(lock) == []
    lock.write_text("thing==2.0+cu128\n")
    assert differences(lock) == ["thing 2.0+cu130, the lock names 2.0+cu128"]
    lock.write_text("thing==2.0+cu130\n")
    assert differences(lock) == []


def test_another_version_and_a_missing_package_are_named(lock: Path) -> None:
    """The refusal names up to three packages, other versions first, and what to do."""
    lock.write_text("a==1\nb==1\nc==1\nthing==2.1\n")
    with pytest.raises(LockError) as error:
        require("tiny")
    assert error.value.what == (
        "this interpreter is not what envs/tiny.lock names: thing 2.0+cu130, the lock names 2.1; "
        "a is missing, the lock names 1; b is missing, the lock names 1; and 1 more"
    )
    assert "nearfree environment make tiny" in error.value.remedy
    assert "python:" in error.value.remedy


@pytest.mark.parametrize("name", ["nothing", "../tiny", "", "Tiny", "tiny\n"])
def test_an_environment_has_a_lock(lock: Path, name: str) -> None:
    """A name without a lock, or that is no name, is no environment."""
    with pytest.raises(ConfigError, match="there is no environment"):
        lock_path(name)


def test_a_file_without_pins_is_no_lock(lock: Path) -> None:
    """An empty or damaged lock does not let every interpreter through."""
    lock.write_bytes(b"\xff\xfe\0nothing")
    with pytest.raises(ConfigError, match="pins nothing"):
        require("tiny")


def test_this_interpreter_is_what_the_workflows_lock_names() -> None:
    """The tests run in the environment that `make install` makes."""
    assert differences(Path(__file__).parents[3] / "envs/cpu.lock") == []


def test_each_distribution_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside 200 packages and more the question opens each one's metadata once."""
    for number in range(200):
        put(tmp_path / "site", f"package{number}", "1.0")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    lock = tmp_path / "many.lock"
    lock.write_text("".join(f"package{number}==1.0 \\\n{HASH * 20}" for number in range(200)))
    opened: list[object] = []
    of_one = installed_lock._metadata

    def counted(distribution: metadata.Distribution) -> metadata.PackageMetadata | None:
        opened.append(distribution)
        return of_one(distribution)

    monkeypatch.setattr(installed_lock, "_metadata", counted)
    assert differences(lock) == []
    assert len(opened) == len(list(metadata.distributions()))
    assert metadata.version("package199") == "1.0"


def test_outside_a_clone_it_says_where_environments_are_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a folder of locks, the remedy names a clone, not another name."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match="there is no environment 'cpu'") as error:
        lock_path("cpu")
    assert "in a clone" in error.value.remedy
