"""Results of an earlier ledger are made again byte for byte, or the command says why not."""

import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs
from nearfree.cli import main
from nearfree.errors import (
    ConfigError,
    DamageError,
    EvidenceError,
    LogError,
    NearfreeError,
    WriteError,
)
from nearfree.log.codebase import package_digest
from nearfree.log.ledger import read_chain, write_ledger
from nearfree.log.names import Layout
from nearfree.log.verify import verify
from nearfree.prove.audit.ledgers import NamedLedger, find_ledger
from nearfree.prove.audit.restore import NOTE, as_of, restore
from prove.audit.history import DERIVED, STEPS, History

Call = Callable[..., tuple[int, str, str]]


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str]) -> Call:
    """Return a function that runs a command and returns its exit code, output and errors."""

    def run(*argv: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            main(argv)
        return int(ended.value.code or 0), *capsys.readouterr()

    return run


@pytest.fixture
def own(history: History, tmp_path: Path) -> History:
    """Return a copy of the history, which a test may change."""
    return history.copy(tmp_path)


def files(folder: Path) -> dict[str, bytes]:
    """Return the bytes of every file below a folder."""
    paths = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}


def test_what_was_derived_comes_back_byte_for_byte(history: History, call: Call) -> None:
    """As of the first ledger, tables, figures and report have the bytes that they had then."""
    code, out, err = call("report", "--results", str(history.layout.root), "--as-of", "1")
    root = history.layout.root / "as_of" / "000001" / "results"
    assert (code, out, err) == (0, f"{root}/report/index.html\n", "")
    for name in DERIVED:
        then = files(history.kept / name)
        assert then
        assert files(root / name) == then
    assert verify(root).findings == ()
    assert [f for f in verify(history.layout.root).findings if f.path.startswith("as_of")] == []
    assert not (root.parent / NOTE).exists()
    assert (root.parent / "config" / "config.yaml").read_text().count("0.15") == 1


def test_a_tracked_ledger_without_this_machine_has_no_tables_of_it(own: History) -> None:
    """A scope without a take in the ledger has no tables, even if the config names it."""
    takes = own.layout.takes("public")
    write_ledger(own.layout, own.layout.ledgers, own.config, takes=takes)
    pipeline, _ = as_of(own.layout, find_ledger(own.layout, "adopted:1"))
    assert pipeline.layout.root.parent.name == "adopted_000001"
    assert [path.name for path in (pipeline.layout.root / "tables").iterdir()] == ["public"]
    assert pipeline.layout.takes() == takes


@pytest.mark.parametrize("step", STEPS)
def test_a_ledger_holds_its_own_takes_alone(own: History, tmp_path: Path, step: str) -> None:
    """A restored root holds the takes and the config texts that the ledger lists, and no others."""
    named = own.ledger(step)
    restored = restore(own.layout, named, tmp_path / "into")
    assert [*map(str, restored.layout.takes())] == sorted(named.ledger.seals)
    texts = {name: raw.decode() for name, raw in files(tmp_path / "into" / "config").items()}
    assert texts == named.ledger.config


@pytest.mark.parametrize("suffix", [".seal.json", ".1.jsonl"])
def test_a_take_that_is_gone_is_named(own: History, suffix: str) -> None:
    """A missing seal or segment is refused by name, and nothing is made."""
    take = own.layout.takes("cpu")[0]
    own.layout.events.joinpath(f"{take}{suffix}").unlink()
    with pytest.raises(LogError, match=f"{take}.*(is gone that ledger 1 lists|No such file)"):
        as_of(own.layout, own.ledger("first"))
    assert not (own.layout.root / "as_of" / "000001").exists()


@pytest.mark.parametrize("suffix", [".seal.json", ".1.jsonl"])
def test_a_changed_byte_of_a_take_is_named(own: History, suffix: str) -> None:
    """A seal or segment that is not what the ledger lists is refused by its name."""
    take = own.layout.takes("cpu")[0]
    path = own.layout.events.joinpath(f"{take}{suffix}")
    raw = path.read_bytes()
    path.write_bytes(raw.replace(b"1", b"2", 1))
    with pytest.raises(DamageError, match=str(take)):
        restore(own.layout, own.ledger("first"), own.folder / "into")


def test_a_take_that_was_retired_is_said_to_be(own: History) -> None:
    """A take that a later ledger retired is refused by name, as retired."""
    take = own.layout.takes("cpu")[0]
    gone = {str(take): own.ledger("first").ledger.seals[str(take)]}
    own.layout.seal(take).unlink()
    write_ledger(own.layout, own.layout.ledgers / "local", own.config, retired=gone)
    with pytest.raises(EvidenceError, match=f"{take} of ledger 1 was retired"):
        restore(own.layout, own.ledger("first"), own.folder / "into")


def test_a_take_that_was_made_anew_is_not_the_one(own: History) -> None:
    """A valid seal with the name but not the digest that the ledger lists is refused."""
    take = str(own.layout.takes("cpu")[0])
    named = own.write(seals={**own.ledger("first").ledger.seals, take: "0" * 64})
    with pytest.raises(DamageError, match=f"{take} is not the one that ledger 10 lists"):
        restore(own.layout, named, own.folder / "into")


def test_a_damaged_take_that_was_retracted_is_not_missed(own: History) -> None:
    """A damaged take is refused unless the ledger retracts it, since nothing reads it then."""
    path = own.layout.segment(own.second, 1)
    path.write_bytes(b"x" + path.read_bytes()[1:])
    restore(own.layout, own.ledger("retraction"), own.folder / "into")
    with pytest.raises(DamageError, match=str(own.second)):
        restore(own.layout, own.ledger("tolerance"), own.folder / "into")


def test_what_was_made_before_stays_until_all_is_there(
    own: History, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A failure keeps the earlier results and leaves no part of the new ones."""

    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    again = own.layout.root / "as_of"
    (again / "000001").mkdir(parents=True)
    (again / "000001" / "before").write_text("before")
    monkeypatch.setattr("nearfree.prove.audit.restore.make_all", stop)
    with pytest.raises(KeyboardInterrupt):
        as_of(own.layout, own.ledger("first"))
    assert files(again) == {"000001/before": b"before"}
    assert [path.name for path in again.iterdir()] == ["000001"]
    monkeypatch.setattr("nearfree.prove.audit.restore.make_all", lambda *_, **__: None)
    monkeypatch.setattr("nearfree.show.page.stage.report_of", lambda _: None)
    as_of(own.layout, own.ledger("first"))
    assert {path.name for path in again.iterdir()} == {"000001"}
    assert {path.name for path in (again / "000001").iterdir()} == {"config", "results"}


@pytest.mark.parametrize("name", ["as_of", "as_of/000001"])
def test_nothing_is_replaced_through_a_link(own: History, name: str) -> None:
    """If a results folder is a link, the command refuses, and the link's target stays as it was."""
    there = own.folder / "there"
    (there / "000001").mkdir(parents=True)
    (there / "000001" / "kept").write_text("kept")
    link = own.layout.root / name
    link.parent.mkdir(exist_ok=True)
    link.symlink_to(there)
    with pytest.raises(WriteError, match=f"{name} is a link or no folder"):
        as_of(own.layout, own.ledger("first"))
    assert files(there) == {"000001/kept": b"kept"}


def test_an_empty_name_is_a_mistake(history: History, call: Call) -> None:
    """An empty ledger name, as of an unset shell variable, does not mean the present state."""
    code, out, err = call("report", "--results", str(history.layout.root), "--as-of", "")
    assert (code, out) == (2, "")
    assert "--as-of is empty" in err


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"code_digest": "0" * 16}, f"'code' was '{'0' * 16}' and is '"),
        ({"libraries": {"polars": "0.0.1"}}, "'polars' was '0.0.1' and is '"),
        ({"libraries": {"no \x1b lib": "1"}}, r"'no \x1b lib' was '1' and is None"),
    ],
)
def test_other_code_is_refused(own: History, changes: dict[str, str], message: str) -> None:
    """If code or libraries differ from the ledger's, the error names both, and nothing is made."""
    named = own.write(**changes, seals=own.ledger("first").ledger.seals)
    with pytest.raises(ConfigError) as refused:
        as_of(own.layout, named)
    assert message in str(refused.value)
    assert not (own.layout.root / "as_of").exists()


def test_other_code_goes_on_if_asked_to_and_says_so(own: History, call: Call) -> None:
    """With --other-code a note beside the results names both codes."""
    own.write(code_digest="0" * 16, seals=own.ledger("first").ledger.seals)
    line = ("report", "--results", str(own.layout.root), "--as-of", "10")
    assert call(*line)[0] == 2
    code, out, note = call(*line, "--other-code")
    assert (code, Path(out.strip()).exists()) == (0, True)
    assert "0" * 16 in note
    assert package_digest() in note
    assert (own.layout.root / "as_of" / "000010" / NOTE).read_text() == note


def test_other_code_alone_is_a_mistake(own: History, call: Call) -> None:
    """--other-code without a ledger is refused."""
    code, _, err = call("report", "--results", str(own.layout.root), "--other-code")
    assert (code, err.count("Name an earlier ledger with --as-of")) == (2, 1)


@pytest.mark.parametrize("name", ["10", "999999", "adopted:1"])
def test_an_unknown_ledger_is_refused(history: History, name: str) -> None:
    """A number without a ledger is refused, and the error lists the existing ledgers."""
    with pytest.raises(LogError, match=f"there is no ledger {name}. There are (1 to 9|none)"):
        find_ledger(history.layout, name)


def test_where_no_ledger_is_written_the_command_that_writes_one_is_named(tmp_path: Path) -> None:
    """A fresh clone has tracked ledgers alone."""
    with pytest.raises(LogError, match="none of this machine: `nearfree ledger` writes one"):
        find_ledger(Layout(tmp_path), "1")


@pytest.mark.parametrize(
    "name", ["", "0", "-1", "1.5", "first", "../1", "000001", "adopted:", "local:1", "1\n"]
)
def test_what_names_no_ledger_is_refused(history: History, name: str) -> None:
    """Only `N` and `adopted:N` name a ledger."""
    with pytest.raises(LogError, match="names no ledger"):
        find_ledger(history.layout, name)


@pytest.mark.parametrize("number", [1, 4, 9])
def test_a_damaged_ledger_is_named(own: History, number: int) -> None:
    """A changed byte in any ledger of the chain is found, whichever ledger is asked for."""
    path = own.layout.ledgers / "local" / f"{number:06}.json"
    path.write_bytes(path.read_bytes().replace(b"cpu", b"gpu", 1))
    with pytest.raises(DamageError, match=path.name):
        find_ledger(own.layout, "1")


@pytest.mark.parametrize(
    "name",
    [
        *("../../x.yaml", "/x.yaml", "a/../../x.yaml", "models/../../x.json", "..", ".", ""),
        *("x\0.yaml", "x\n.yaml", "notes.txt", "models/a/b.json", "./x.yaml", "a//b.yaml", "x/"),
        *("a" * 196 + ".yaml", "é" * 98 + ".yaml", "a/" * 98 + ".yaml"),
    ],
)
def test_a_config_file_never_leaves_its_folder(own: History, name: str) -> None:
    """A ledger with a config file's name outside the folder is refused; nothing is written."""
    named = own.write(config={**own.ledger("first").ledger.config, name: "a: 1\n"})
    before = files(own.folder)
    with pytest.raises(DamageError, match="no name of a config file"):
        restore(own.layout, named, own.folder / "into")
    assert files(own.folder) == before


@given(name=st.text(st.sampled_from("./\\amodels~\0é") | st.characters(), max_size=20))
def test_any_config_name_stays_inside_or_is_refused(
    history: History, tmp_path_factory: pytest.TempPathFactory, name: str
) -> None:
    """For any name, no file is written outside the named folder."""
    folder = tmp_path_factory.mktemp("hostile")
    ledger = structs.replace(
        history.ledger("first").ledger, seals={}, config={f"{name}.yaml": "a: 1\n"}
    )
    with suppress(NearfreeError):
        restore(history.layout, NamedLedger("1", ledger), folder / "into")
    written = {path.relative_to(folder).parts[:2] for path in folder.rglob("*")}
    assert written <= {("into",), ("into", "config"), ("into", "results")}


def test_a_model_outside_of_the_ledger_is_refused(own: History) -> None:
    """A model file that the config names but the ledger does not hold is refused."""
    outside = own.folder / "outside.json"
    shutil.copy(own.config / "models" / "qwen3_8b.json", outside)
    config = {**own.ledger("first").ledger.config}
    config["deployments.yaml"] = config["deployments.yaml"].replace("qwen3_8b", str(outside))
    named = own.write(config=config)
    with pytest.raises(ConfigError, match="ledger 10 does not hold the model file"):
        restore(own.layout, named, own.folder / "into")


def test_a_config_that_does_not_fit_is_told_as_the_ledgers(own: History) -> None:
    """The message names the ledger and its config file, not a temporary folder."""
    named = own.write(config={**own.ledger("first").ledger.config, "config.yaml": "odd: 1\n"})
    with pytest.raises(
        ConfigError, match=r"config of ledger 10 does not fit this code: config\.yaml"
    ):
        restore(own.layout, named, own.folder / "into")


@pytest.mark.parametrize("take", ["../../x/1-00000000", "cpu/dense_ffn/1", "a/b/c/1-00000000"])
def test_a_take_that_is_no_name_is_refused(own: History, take: str) -> None:
    """A ledger that lists something else than a take's name is refused; nothing is linked."""
    named = own.write(seals={take: "0" * 64})
    with pytest.raises(LogError, match="is not the name of a take"):
        restore(own.layout, named, own.folder / "into")


def test_the_chain_is_as_long_as_the_history(history: History) -> None:
    """The history has one ledger per step."""
    assert len({link.hash for link in read_chain(history.layout.ledgers / "local")}) == len(STEPS)
