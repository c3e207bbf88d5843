"""Ledgers: chained lists of all seals, with the config and code of the moment."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from conftest import write_take
from msgspec import UNSET
from nearfree.errors import BusyError, ConfigError, DamageError, LogError
from nearfree.log.document import read_document, render, write_once
from nearfree.log.ledger import (
    LONGEST_PATH,
    Ledger,
    config_texts,
    current_seals,
    ledger_paths,
    read_chain,
    retired_seals,
    seals_root,
    write_ledger,
)
from nearfree.log.line import GENESIS, sha256
from nearfree.log.names import Layout, parse_take

from log.faults import damage


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """Write a config folder."""
    folder = tmp_path / "config"
    (folder / "models").mkdir(parents=True)
    (folder / "config.yaml").write_text("here: [cpu]\n")
    (folder / "models" / "small.yaml").write_text("layers: 2\n")
    (folder / "notes.txt").write_text("not a config file\n")
    return folder


def local(layout: Layout) -> Path:
    """Return the folder of this machine's own ledgers."""
    return layout.ledgers / "local"


def write_ledgers(layout: Layout, config: Path, count: int) -> list[Path]:
    """Write ledgers, one after each new take."""
    paths = []
    for take in range(1, count + 1):
        write_take(layout, take=take)
        paths.append(write_ledger(layout, local(layout), config))
    return paths


def test_a_ledger_says_what_there_is(layout: Layout, config: Path) -> None:
    """A ledger holds each seal's hash, their root, the config's text, and the versions."""
    name = write_take(layout).name
    seals = current_seals(layout)
    path = write_ledger(layout, local(layout), config)
    assert path == local(layout) / "000001.json"
    ledger = read_document(path, Ledger)
    digest = sha256(layout.seal(name).read_bytes())
    assert ledger.seals == seals == {str(name): digest}
    assert ledger.root == sha256(f"{name} {digest}\n".encode())
    assert ledger.config == {"config.yaml": "here: [cpu]\n", "models/small.yaml": "layers: 2\n"}
    assert (ledger.number, ledger.previous) == (1, GENESIS)
    assert "polars" in ledger.libraries
    assert damage(layout.root) == []


def test_the_root_does_not_depend_on_the_order() -> None:
    """The root is over the sorted seals, and any other name or digest makes another root."""
    assert seals_root({"a": "1", "b": "2"}) == seals_root({"b": "2", "a": "1"})
    assert seals_root({"a": "1"}) != seals_root({"a": "2"}) != seals_root({"b": "2"})


def test_ledgers_are_chained(layout: Layout, config: Path) -> None:
    """Each ledger names the hash of the one before it."""
    paths = write_ledgers(layout, config, 3)
    assert [p.name for p in paths] == ["000001.json", "000002.json", "000003.json"]
    chain = read_chain(local(layout))
    assert [ledger.previous for ledger in chain] == [GENESIS, chain[0].hash, chain[1].hash]
    assert [len(ledger.seals) for ledger in chain] == [1, 2, 3]
    assert read_chain(layout.ledgers) == []


def test_nothing_new_makes_no_new_ledger(layout: Layout, config: Path) -> None:
    """Writing again without a change returns the newest ledger; a changed config makes another."""
    paths = write_ledgers(layout, config, 2)
    assert write_ledger(layout, local(layout), config) == paths[-1]
    (config / "config.yaml").write_text("here: [h20]\n")
    assert write_ledger(layout, local(layout), config).name == "000003.json"
    (config / "config.yaml").write_text("here: [cpu]\n")
    assert write_ledger(layout, local(layout), config).name == "000004.json"


@pytest.mark.parametrize("gone", [0, 1])
def test_a_missing_ledger_is_found(layout: Layout, config: Path, gone: int) -> None:
    """A chain that lacks its first or a middle ledger is broken, and takes no further one."""
    write_ledgers(layout, config, 3)[gone].unlink()
    with pytest.raises(DamageError, match=f"does not follow ledger {gone}"):
        read_chain(local(layout))
    with pytest.raises(DamageError):
        write_ledger(layout, local(layout), config)
    assert [finding.path for finding in damage(layout.root)] == ["ledger/local"]


def test_a_replaced_ledger_breaks_the_chain(layout: Layout, config: Path) -> None:
    """A valid ledger with other content does not match the digest in its successor."""
    paths = write_ledgers(layout, config, 3)
    ledger = read_document(paths[1], Ledger)
    forged = {**_fields(ledger), "config": {}}
    paths[1].write_bytes(render(Ledger(**forged)))
    assert read_document(paths[1], Ledger).config == {}
    with pytest.raises(DamageError, match=r"000003\.json does not follow ledger 2"):
        read_chain(local(layout))
    assert damage(layout.root) != []


def _fields(ledger: Ledger) -> dict[str, object]:
    return {field: getattr(ledger, field) for field in ledger.__struct_fields__}


def test_a_ledger_whose_root_is_not_that_of_its_seals_is_found(
    layout: Layout, config: Path
) -> None:
    """The root of a ledger must be the root of the seals that it lists."""
    (path,) = write_ledgers(layout, config, 1)
    forged = {**_fields(read_document(path, Ledger)), "root": "0" * 64}
    path.write_bytes(render(Ledger(**forged)))
    with pytest.raises(DamageError, match="is not ledger 1"):
        read_chain(local(layout))


def test_a_ledger_under_another_number_is_found(layout: Layout, config: Path) -> None:
    """A sound first ledger under the name of a later one is out of place."""
    (path,) = write_ledgers(layout, config, 1)
    path.rename(path.with_name("000002.json"))
    with pytest.raises(DamageError, match="is not ledger 1"):
        read_chain(local(layout))


def test_a_missing_seal_is_found(layout: Layout, config: Path) -> None:
    """A missing seal that a ledger names is found, whether or not its take is missing too."""
    write_ledgers(layout, config, 1)
    name = layout.takes()[0]
    for path in (layout.seal(name), layout.segment(name, 1), layout.receipt(name)):
        path.unlink()
        assert any(f"the seal of {name} is gone" in f.message for f in damage(layout.root))


def test_a_replaced_seal_is_found(layout: Layout, config: Path) -> None:
    """A take measured again under its old name verifies, but does not match the ledger."""
    write_ledgers(layout, config, 1)
    name = layout.takes()[0]
    for path in (layout.seal(name), layout.segment(name, 1)):
        path.unlink()
    write_take(layout)
    (finding,) = damage(layout.root)
    assert finding.path == "ledger/local/000001.json"
    assert f"the seal of {name} is not the one this ledger names" in finding.message


def test_a_ledger_retires_takes_that_are_gone_by_their_seals(layout: Layout, config: Path) -> None:
    """Retired is a take of the last ledger that is gone and whose very seal was named as retired.

    A take that is still there, one under another seal and one that is gone without a word are not.
    """
    write_ledgers(layout, config, 4)
    seals = current_seals(layout)
    gone, another, silent, kept = seals
    for name in (gone, another, silent):
        layout.seal(parse_take(name)).unlink()
    named = {gone: seals[gone], another: "0" * 64, kept: seals[kept], "cpu/other/1-01234567": ""}
    write_ledger(layout, local(layout), config, retired=named)
    assert read_chain(local(layout))[-1].retired == {gone: seals[gone]}
    assert retired_seals(layout) == {gone: seals[gone]}
    write_take(layout, take=5)
    write_ledger(layout, local(layout), config)
    ledgers = read_chain(local(layout))
    assert len(ledgers) == 6
    assert [ledger.retired for ledger in ledgers if ledger.number != 5] == [UNSET] * 5


@pytest.mark.parametrize("where", ["config.yaml", "models/small.yaml"])
def test_a_tracked_ledger_keeps_no_home_folder(layout: Layout, config: Path, where: str) -> None:
    """A config with the home folder in it is refused by the tracked ledger, not by the local."""
    write_take(layout)
    (config / where).write_text(f"cache: {Path.home()}/cache\n")
    with pytest.raises(ConfigError, match=f"config/{where} holds the path of your home folder"):
        write_ledger(layout, layout.ledgers, config)
    assert ledger_paths(layout.ledgers) == []
    assert write_ledger(layout, local(layout), config).exists()


def test_a_folder_without_config_is_refused(layout: Layout, tmp_path: Path) -> None:
    """A ledger needs the config folder that it records."""
    with pytest.raises(ConfigError, match="holds no config files"):
        write_ledger(layout, local(layout), tmp_path / "none")
    assert ledger_paths(local(layout)) == []


def test_a_config_that_is_no_text_is_refused(layout: Layout, config: Path) -> None:
    """A config file with other bytes than text is named, not passed over."""
    (config / "config.yaml").write_bytes(b"here: [\xff]\n")
    with pytest.raises(ConfigError, match=r"config\.yaml is not text"):
        write_ledger(layout, local(layout), config)


@pytest.mark.parametrize("name", ["more.yaml", "models/more.json"])
@pytest.mark.parametrize("stands_in", [Path.mkdir, os.mkfifo, lambda path: path.symlink_to("no")])
def test_a_config_file_that_is_none_is_refused(
    config: Path, name: str, stands_in: Callable[[Path], None]
) -> None:
    """A folder, a pipe and a broken link are named as no config file, and never waited for."""
    stands_in(config / name)
    with pytest.raises(ConfigError, match=f"{name} is no file"):
        config_texts(config)


@pytest.mark.parametrize("folders", ["", "sets/"])
def test_a_config_file_with_a_long_path_is_refused(config: Path, folders: str) -> None:
    """A path that a ledger could not write out again is refused by its length, on a byte."""
    (config / "sets").mkdir()
    longest = f"{folders}{'a' * (LONGEST_PATH - len(folders) - 7)}é.yaml"
    (config / longest).write_text("here: [cpu]\n")
    assert longest in config_texts(config)
    (config / longest).rename(config / f"{longest[:-5]}b.yaml")
    with pytest.raises(ConfigError, match=r"aaa is no path .* more than 200 bytes"):
        config_texts(config)


@pytest.mark.parametrize(("name", "shown"), [(b"a\nb.yaml", r"a\\nb"), (b"\xff.yaml", r"\\udcff")])
def test_a_config_file_whose_path_is_no_plain_text_is_refused(
    config: Path, name: bytes, shown: str
) -> None:
    """A path with a line break, or that is not UTF-8, is refused before a ledger is written."""
    (config / os.fsdecode(name)).write_text("here: [cpu]\n")
    with pytest.raises(ConfigError, match=rf"config/{shown}\S* is no path that a ledger records"):
        config_texts(config)


def test_a_config_file_that_memory_would_not_hold_is_refused(config: Path) -> None:
    """A file far larger than any config is refused by its size, without reading it."""
    (config / "more.yaml").touch()
    os.truncate(config / "more.yaml", 10**12)
    with pytest.raises(LogError, match=r"more\.yaml would take 1,000,000,000,000 bytes"):
        config_texts(config)


def test_what_an_editor_hides_is_no_config(config: Path) -> None:
    """A lock that an editor lays beside a file, a link to nothing, is not on record."""
    before = config_texts(config)
    (config / ".#config.yaml").symlink_to("somebody@host.1234")
    (config / "models" / ".#small.json").symlink_to("somebody@host.1234")
    (config / ".old").mkdir()
    (config / ".old" / "config.yaml").write_text("here: [h20]\n")
    assert config_texts(config) == before
    assert sorted(before) == ["config.yaml", "models/small.yaml"]


def test_two_ledgers_of_one_number_are_refused(layout: Layout, config: Path) -> None:
    """A second job that writes the same number at the same time is refused."""
    (path,) = write_ledgers(layout, config, 1)
    with pytest.raises(BusyError):
        write_once(path, read_document(path, Ledger))


def test_a_listing_may_lack_older_ledgers(
    layout: Layout, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ledgers before the newest listed one are looked for by name; a missing one stays out."""
    first, second, third = write_ledgers(layout, config, 3)
    for listed in ([third], [second, third], [third, first]):
        monkeypatch.setattr(Path, "glob", lambda *_, paths=listed: iter(paths))
        assert ledger_paths(local(layout)) == [first, second, third]
    second.unlink()
    assert ledger_paths(local(layout)) == [first, third]


def test_other_files_are_no_ledgers(layout: Layout, config: Path) -> None:
    """Only six digits name a ledger."""
    (path,) = write_ledgers(layout, config, 1)
    for name in ("1.json", "0000001.json", "notes.json", ".000002.json.7"):
        path.with_name(name).touch()
    assert ledger_paths(path.parent) == [path]
    assert len(read_chain(path.parent)) == 1
