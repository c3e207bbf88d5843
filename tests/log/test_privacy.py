"""Privacy: no home folder and no URL ever enters an event."""

import pwd
from pathlib import Path

import pytest
from conftest import make_latency, make_plan, make_setting, make_started, write_take
from nearfree.errors import LogError, NearfreeError
from nearfree.log.events import RunFailed, RunStarted
from nearfree.log.ledger import write_ledger
from nearfree.log.names import Layout, TakeName
from nearfree.log.reader import read_segment
from nearfree.log.segment import SegmentWriter
from nearfree.log.take import OpenTake, take_name

NAME = TakeName("cpu", "dense", 1, "0123abcd")


@pytest.mark.parametrize("sync", [True, False])
def test_private_text_is_refused(
    layout: Layout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, sync: bool
) -> None:
    """An event with the home folder or a URL is refused before a byte of it is written."""
    monkeypatch.setenv("HOME", str(tmp_path / "someone"))
    writer = SegmentWriter(layout, NAME, 1)
    writer.append(make_latency())
    before = writer.path.read_bytes()
    for text in (f"{tmp_path}/someone/weights", "see https://host/x"):
        for event in (
            RunFailed(error=text, remedy=""),
            make_latency(setting=make_setting(backend=text)),
            make_started(make_plan(backend=text)),
        ):
            with pytest.raises(LogError, match="no home folder and no URL"):
                writer.append(event, sync=sync)
    assert writer.path.read_bytes() == before
    writer.append(make_latency(1))
    assert len(read_segment(writer.path, writer.name).events) == 2


@pytest.mark.parametrize("home", ["/", ""])
def test_a_root_home_folder_forbids_no_path(
    layout: Layout, monkeypatch: pytest.MonkeyPatch, home: str
) -> None:
    """Where the home folder is `/`, as in some containers, a path is not private for that."""
    monkeypatch.setenv("HOME", home)
    with SegmentWriter(layout, NAME, 1) as writer:
        writer.append(RunFailed(error="a/b", remedy=""))
    assert len(read_segment(writer.path, writer.name).events) == 1


def failed(layout: Layout, error: NearfreeError) -> RunFailed:
    """Let a take fail, and return what is on record of it."""

    def work(_: OpenTake) -> float:
        raise error

    with pytest.raises(NearfreeError):
        write_take(layout, work=work)
    name = take_name("cpu", "dense", 1, make_plan())
    started, data = (e.data for e in read_segment(layout.segment(name, 1), f"{name}.1").events)
    assert isinstance(started, RunStarted)
    assert isinstance(data, RunFailed)
    return data


@pytest.mark.parametrize("text", ["https://host/x", str(Path.home() / "x")], ids=["url", "home"])
@pytest.mark.parametrize("part", ["what", "remedy"])
def test_a_failure_with_private_text_is_on_record(layout: Layout, text: str, part: str) -> None:
    """An error that speaks of a URL or the home folder is on record too, without them."""
    texts = {"what": "it failed", "remedy": "Look"} | {part: f"see {text} please"}
    data = failed(layout, NearfreeError(texts["what"], remedy=texts["remedy"]))
    assert "please" in data.error + data.remedy
    assert text not in data.error + data.remedy


def test_a_failure_names_folders_of_the_project(layout: Layout) -> None:
    """Paths below the working folder and the home folder are shortened in what is on record."""
    error = NearfreeError(f"{Path.cwd()}/a and {Path.home()}/b are gone", remedy="Look")
    assert failed(layout, error) == RunFailed(error="./a and ~/b are gone", remedy="Look")


def test_a_user_without_a_home_folder_can_write(
    layout: Layout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A user whom the system does not know, as in some containers, can write, fail and list."""

    def unknown(_: int) -> None:
        raise KeyError

    monkeypatch.delenv("HOME")
    monkeypatch.setattr(pwd, "getpwuid", unknown)
    assert failed(layout, NearfreeError("it failed", remedy="Look")).error == "it failed"
    write_take(layout)
    (tmp_path / "config.yaml").write_text("here: [cpu]\n")
    assert write_ledger(layout, layout.ledgers, tmp_path).exists()
