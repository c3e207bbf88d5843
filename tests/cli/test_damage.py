"""Damaged files: a plan, a log, a table or a config that is unreadable is named."""

import os
import shutil
from pathlib import Path

import pytest
from nearfree.log.names import Layout

from cli.conftest import Call
from cli.test_mistakes import folder_content, one_message

PLANS = {
    "no JSON": "plan",
    "nothing": "",
    "a list": "[]",
    "another kind": '{"kind": "probe", "dtypes": ["float32"]}',
    "no sweeps": '{"kind":"measure","sweeps":[],"protocol":{"name":"interleaved"},'
    '"environment":"cpu"}',
    "no baseline": '{"kind":"measure","sweeps":[{"setting":{"module":"dense_ffn","backend":"torch",'
    '"dtype":"auto","d_model":8,"d_ff":8},"positions":[2]}],"protocol":{"name":"interleaved"},'
    '"environment":"cpu"}',
    "a grid that falls": '{"kind":"measure","sweeps":[{"setting":{"module":"dense_ffn","backend":'
    '"torch","dtype":"auto","d_model":8,"d_ff":8},"positions":[2,1]}],"protocol":{"name":'
    '"interleaved"},"environment":"cpu"}',
    "no width": '{"kind":"measure","sweeps":[{"setting":{"module":"dense_ffn","backend":"torch",'
    '"dtype":"auto"},"positions":[1]}],"protocol":{"name":"interleaved"},"environment":"cpu"}',
}


@pytest.mark.parametrize("text", PLANS.values(), ids=PLANS.keys())
def test_a_bad_plan_is_one_message(project: Path, call: Call, text: str) -> None:
    """An invalid plan is refused before anything is written."""
    (project / "plan.json").write_text(text)
    before = folder_content(project)
    one_message(call("measure", "cpu", "dense_ffn", "--plan", "plan.json"), "plan.json")
    assert folder_content(project) == before


@pytest.mark.parametrize("line", ["measure cpu dense_ffn --plan", "campaign"])
def test_a_plan_without_an_end_is_refused(project: Path, call: Call, line: str) -> None:
    """A file that is no plan is not read into memory whole, however large it is."""
    one_message(call(*line.split(), "/dev/zero"), "/dev/zero has more than")


@pytest.mark.parametrize("name", ["nowhere.json", "."])
def test_a_plan_that_cannot_be_read(project: Path, call: Call, name: str) -> None:
    """A plan that is no file is named."""
    one_message(call("measure", "cpu", "dense_ffn", "--plan", name), name)


def test_a_plan_that_is_no_text(project: Path, call: Call) -> None:
    """A plan of bytes that are no text is named."""
    (project / "plan.json").write_bytes(b"\xff\xfe")
    one_message(call("measure", "cpu", "dense_ffn", "--plan", "plan.json"), "plan.json")


@pytest.mark.parametrize("line", ["log show TAKE", "tables project cpu", "measure cpu dense_ffn"])
def test_a_damaged_segment_is_one_message(project: Path, call: Call, line: str) -> None:
    """A command that reads a damaged segment names it; a list reads none."""
    layout = Layout(project / "results")
    take = layout.takes("cpu")[1]
    path = layout.segment(take, 1)
    assert "hardware" in str(path)
    path.write_bytes(path.read_bytes().replace(b"Test CPU", b"Best CPU"))
    shutil.rmtree(project / "results" / "tables")
    one_message(call(*line.replace("TAKE", str(take)).split()), path.name)
    assert not (project / "results" / "tables").exists()
    code, out, _ = call("log", "show", "cpu")
    assert (code, str(take) in out) == (0, True)


@pytest.mark.parametrize(
    ("line", "table"),
    [
        ("tables boundaries cpu", "latency"),
        ("tables predictions cpu", "settings"),
        ("tables validation cpu", "boundaries"),
        ("figures cpu", "predictions"),
        ("report", "granularity"),
    ],
)
def test_a_damaged_table_is_one_message(project: Path, call: Call, line: str, table: str) -> None:
    """A command that reads a damaged table names it."""
    path = project / "results" / "tables" / "cpu" / f"{table}.parquet"
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    one_message(call(*line.split()), path.name)


def test_a_pipe_in_the_place_of_a_config_is_named(project: Path, call: Call) -> None:
    """A config file that is a pipe, which nobody writes, is refused instead of waited for."""
    (project / "config" / "config.yaml").unlink()
    os.mkfifo(project / "config" / "config.yaml")
    one_message(call("plan", "cpu", "dense_ffn"), "config.yaml is no file")


def test_a_config_that_is_no_text(project: Path, call: Call) -> None:
    """A config file that is no text is named, also by commands that only copy it."""
    (project / "config" / "config.yaml").write_bytes(b"here: \xff\n")
    for line in (["plan", "cpu", "dense_ffn"], ["report"], ["ledger"]):
        one_message(call(*line), "config.yaml")


def test_a_file_in_the_place_of_a_folder(project: Path, call: Call) -> None:
    """Results that are a file are refused by name."""
    (project / "file").touch()
    for line in (["verify", "file"], ["import", "published", "--results", "file"]):
        one_message(call(*line), "file")
