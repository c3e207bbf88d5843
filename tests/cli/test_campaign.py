"""Plans for another machine, and the command that runs them there."""

import io
import os
import signal
import sys
from pathlib import Path

import pytest
from derive.tables.logs import copy_config
from nearfree.cli.waiting import ProgressBar
from nearfree.core.plan import Order, read_orders
from nearfree.errors import StoppedError
from nearfree.log.names import Layout

from cli.conftest import Call

STUDIES = """
first: &study
  module: dense_ffn
  backend: torch
  platforms: [cpu]
  shape: {d_model: 64, d_ff: 128}
  dtype: float32
  positions: [1, 2]
  protocol: {name: interleaved, rounds: 3}
second:
  <<: *study
  positions: [1, 4]
other:
  <<: *study
  platforms: [h200]
"""


@pytest.fixture
def campaign_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Change to a folder with a config of two small studies of this machine."""
    copy_config(tmp_path / "config")
    (tmp_path / "config/studies.yaml").write_text(STUDIES)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("nearfree.hardware.clocks.CpuClock.check", lambda _self, _us: None)
    return tmp_path


def test_a_platforms_orders(campaign_folder: Path, call: Call) -> None:
    """Without a study, `plan` prints the probe and each study of any platform, a line each."""
    code, out, _ = call("plan", "h200")
    assert code == 0
    orders = read_orders(out, "here")
    assert [(o.scope, o.stream, o.device) for o in orders] == [
        ("h200", "hardware", "cuda"),
        ("h200", "other", "cuda"),
    ]


def test_orders_of_a_platform_that_no_study_names(campaign_folder: Path, call: Call) -> None:
    """Its probe is ordered, with the reason why nothing else is."""
    code, out, err = call("plan", "h20")
    assert (code, len(out.splitlines())) == (0, 1)
    assert "names h20, so only its hardware is probed" in err
    assert call("plan", "cpu")[2] == ""


@pytest.mark.slow
def test_a_campaign_makes_every_take(campaign_folder: Path, call: Call) -> None:
    """A campaign seals the probe and every study without the config, and none of them twice."""
    Path("orders").write_text(call("plan", "cpu")[1])
    line = ("campaign", "orders", "--results", "there", "--config", "nowhere")
    code, out, err = call(*line)
    assert (code, err) == (0, "")
    assert [text.split("/")[1] for text in out.splitlines()] == ["hardware", "first", "second"]
    before = sorted(Path("there").rglob("*"))
    assert call(*line)[1] == out
    assert sorted(Path("there").rglob("*")) == before


@pytest.mark.slow
def test_a_failure_does_not_end_a_campaign(campaign_folder: Path, call: Call) -> None:
    """A take that cannot be measured is named, the rest is made, and the exit code is 2."""
    Path("orders").write_text(call("plan", "h200")[1] + call("plan", "cpu")[1])
    code, out, err = call("campaign", "orders", "--results", "there")
    assert code == 2
    assert len(out.splitlines()) == 3
    assert [line.split(": ")[2] for line in err.splitlines()] == ["h200/hardware", "h200/other"]


def test_no_take_begins_after_sigterm(
    campaign_folder: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SIGTERM ends the campaign with the take that it came in."""
    Path("orders").write_text(call("plan", "cpu")[1])
    begun = list[str]()

    def stop(_layout: Layout, order: Order, *, untested: bool) -> str:
        begun.append(f"{order.stream} {untested}")
        raise StoppedError("the job was told to stop", remedy="Run it again")

    monkeypatch.setattr("nearfree.cli.measure._make_order", stop)
    code, out, err = call("campaign", "orders", "--results", "there")
    assert (code, out, begun) == (2, "", ["hardware False"])
    assert "told to stop" in err


@pytest.mark.slow
def test_no_take_begins_after_the_deadline(
    campaign_folder: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the deadline the remaining takes are named, and none of them begins."""
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(call("plan", "cpu")[1].encode())))
    times = iter([0.0, 1.0, 100.0])
    monkeypatch.setattr("nearfree.cli.measure.time.monotonic", lambda: next(times, 100.0))
    code, out, _ = call("campaign", "-", "--results", "there", "--deadline", "30")
    assert code == 0
    assert out.splitlines()[-1] == "the deadline of 30 s is over; left: first, second"
    assert [take.stream for take in Layout(Path("there")).takes()] == ["hardware"]


@pytest.mark.parametrize("line", [b"{}", b"nonsense", b'{"scope": "../x"}', b"\xff\xfe"])
def test_a_line_that_is_no_order_is_refused(campaign_folder: Path, call: Call, line: bytes) -> None:
    """A damaged order file is refused with its line, before anything is measured."""
    Path("orders").write_bytes(call("plan", "cpu")[1].encode() + line + b"\n")
    code, _, err = call("campaign", "orders", "--results", "there")
    assert (code, "orders, line 4 is no order" in err) == (2, True)
    assert not Path("there").exists()


@pytest.mark.slow
def test_a_signal_in_the_last_round_ends_the_campaign_after_its_take(
    campaign_folder: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A take that is complete is sealed all the same, and no other one begins."""

    class StoppedProgressBar(ProgressBar):
        def __call__(self, share: float) -> None:
            if share == 1:
                os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr("nearfree.cli.measure.ProgressBar", StoppedProgressBar)
    Path("orders").write_text(call("plan", "cpu")[1])
    code, out, err = call("campaign", "orders", "--results", "there")
    assert (code, len(out.splitlines())) == (2, 2)
    assert "told to stop" in err
    assert [take.stream for take in Layout(Path("there")).takes()] == ["first", "hardware"]
