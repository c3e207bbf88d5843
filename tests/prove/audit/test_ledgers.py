"""Ledgers by name, the names of their config files, and what differs from the installed code."""

from importlib import metadata
from pathlib import Path

import pytest
from conftest import write_take
from nearfree.errors import DamageError, LogError
from nearfree.log.codebase import package_digest
from nearfree.log.ledger import Ledger, seals_root, write_ledger
from nearfree.log.line import GENESIS
from nearfree.log.names import Layout
from nearfree.prove.audit.ledgers import NamedLedger, check_names, differences, find_ledger


@pytest.fixture
def written(layout: Layout, tmp_path: Path) -> Layout:
    """Return a log with two ledgers of this machine and a tracked one."""
    config = tmp_path / "config"
    config.mkdir()
    (config / "config.yaml").write_text("here: [cpu]\n")
    for take in (1, 2):
        write_take(layout, take=take)
        write_ledger(layout, layout.ledgers / "local", config)
    write_ledger(layout, layout.ledgers, config)
    return layout


def ledger(*files: str, code: str = "", **libraries: str) -> Ledger:
    """Return a ledger with these config files, code and libraries, and no takes."""
    return Ledger(
        number=7, time="", previous=GENESIS, root=seals_root({}), seals={},
        config=dict.fromkeys(files, ""), code_digest=code or package_digest(), libraries=libraries,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("name", "number", "takes", "folder"),
    [("1", 1, 1, "000001"), ("2", 2, 2, "000002"), ("adopted:1", 1, 2, "adopted_000001")],
)
def test_a_ledger_is_found_by_its_name(
    written: Layout, name: str, number: int, takes: int, folder: str
) -> None:
    """N is a ledger of this machine and adopted:N a tracked one, each with a folder of its own."""
    named = find_ledger(written, name)
    assert (named.name, named.ledger.number, len(named.ledger.seals)) == (name, number, takes)
    assert (named.folder, named.adopted) == (folder, name.startswith("adopted:"))


@pytest.mark.parametrize(
    ("name", "there"),
    [("3", "1 to 2"), ("999999", "1 to 2"), ("adopted:2", "adopted:1 to adopted:1")],
)
def test_a_ledger_that_is_not_there_is_refused(written: Layout, name: str, there: str) -> None:
    """A number without a ledger is refused with the ledgers that there are."""
    with pytest.raises(LogError) as caught:
        find_ledger(written, name)
    assert (caught.value.what, caught.value.remedy) == (
        f"there is no ledger {name}", f"There are {there}",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("name", "there"),
    [
        ("1", "none of this machine: `nearfree ledger` writes one; adopted:N is a tracked one"),
        ("adopted:1", "none"),
    ],
)
def test_a_log_may_have_no_ledgers(layout: Layout, name: str, there: str) -> None:
    """Without ledgers the refusal says so, of this machine's with the command that writes one."""
    with pytest.raises(LogError) as caught:
        find_ledger(layout, name)
    assert caught.value.remedy == f"There are {there}"


@pytest.mark.parametrize(
    "name", ["", "0", "01", "1000000", "-1", "x1", "1x", "adopted:", "local:1"]
)
def test_other_texts_name_no_ledger(layout: Layout, name: str) -> None:
    """A name is a number of at most six digits, or one behind `adopted:`."""
    with pytest.raises(LogError, match="names no ledger"):
        find_ledger(layout, name)


def test_names_of_config_files_are_accepted() -> None:
    """YAML files of any folder and JSON files of `models` are config files."""
    check_names(ledger("config.yaml", "sets/more.yaml", "models/small.json", "models/x.yaml"))


@pytest.mark.parametrize(
    "name",
    [
        *("../x.yaml", "a/../x.yaml", "models/../../x.json", "/x.yaml", "..", ".", "", "./x.yaml"),
        *("a//b.yaml", "x/", "x\0.yaml", "x\n.yaml", "notes.txt", "small.json", "models/a/b.json"),
        *("other/a.json", "models/x.txt", "a" * 196 + ".yaml", "é" * 98 + ".yaml"),
    ],
)
def test_other_names_are_damage(name: str) -> None:
    """A name that leads elsewhere, is no config file's or cannot be a path is refused."""
    with pytest.raises(DamageError, match=r"^ledger 7 holds .*, which is no name of a config file"):
        check_names(ledger("config.yaml", name))


def test_the_same_code_and_libraries_do_not_differ() -> None:
    """A ledger of the installed code and libraries has no differences."""
    assert differences(ledger(polars=metadata.version("polars"))) == ""


def test_other_code_and_libraries_are_told_with_both_versions() -> None:
    """Code, another version and a library that is not installed are told, and no others."""
    versions = {name: metadata.version(name) for name in ("polars", "msgspec")}
    other = ledger(code="0", msgspec=versions["msgspec"], polars="0.1", no_such_library="1")
    assert differences(other) == (
        f"'code' was '0' and is '{package_digest()}'; "
        f"'polars' was '0.1' and is '{versions['polars']}'; "
        "'no_such_library' was '1' and is None"
    )
    assert not NamedLedger("7", other).adopted
