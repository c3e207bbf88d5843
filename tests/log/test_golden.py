"""The golden log: what was written once must stay readable for ever."""

import re
from pathlib import Path

from conftest import CLOCK
from msgspec import json
from nearfree.log.events import HardwareProbed
from nearfree.log.evidence import read_scope
from nearfree.log.ledger import read_chain
from nearfree.log.names import Layout
from nearfree.log.reader import read_segment
from nearfree.log.verify import verify

from log.faults import HERE
from log.make_golden import content

GOLDEN = HERE / "golden"
LAYOUT = Layout(GOLDEN / "log")
TYPES = {
    "boundary.published",
    "hardware.probed",
    "latency.measured",
    "observation.retracted",
    "rule.published",
    "run.failed",
    "run.finished",
    "run.started",
    "segment.recovered",
}


def files() -> list[Path]:
    """Return every golden file."""
    return [path for path in GOLDEN.rglob("*") if path.is_file()]


def test_the_golden_log_is_sound() -> None:
    """Every byte of the golden log verifies; notices are its torn tails and receipts."""
    summary = verify(LAYOUT.root)
    assert not summary.damaged
    assert (summary.takes, summary.events) == (4, 22)
    assert [finding.path.split("/")[2] for finding in summary.findings] == ["dense", "hardware"]
    assert all("after its sealed part" in finding.message for finding in summary.findings)


def test_the_golden_log_says_what_it_always_said() -> None:
    """Every event of the golden log decodes to the values that it was written with."""
    expected = json.decode((GOLDEN / "expected.json").read_bytes())
    assert content(LAYOUT) == expected


def test_the_golden_log_holds_every_first_version() -> None:
    """The golden log holds each event type of the first release, sealed or unsealed."""
    type_names = {
        event.data.type_name
        for name in LAYOUT.takes()
        for attempt in LAYOUT.attempts(name)
        for event in read_segment(LAYOUT.segment(name, attempt), name.segment(attempt)).events
    }
    assert type_names == {f"nearfree.{name}.v1" for name in TYPES}


def test_the_golden_evidence() -> None:
    """The golden retraction still works, and typed values come out of the golden probe."""
    dense, hardware, _ = read_scope(LAYOUT, "cpu")
    numbers = [(event.source[-1], event.id) for event in dense.events]
    assert numbers == [("1", "1"), ("1", "2"), ("1", "3"), *(("2", n) for n in "124567")]
    probed = next(e for e in hardware.events if isinstance(e.data, HardwareProbed))
    assert probed.time == CLOCK
    assert probed.data.fingerprint.caches == {"L2": 1048576}
    assert probed.data.compute[0].gflop_s == 95.5


def test_the_golden_tails_are_still_torn() -> None:
    """The cut last line of both first attempts is a torn tail, not damage."""
    for name in LAYOUT.takes("cpu")[:2]:
        segment = read_segment(LAYOUT.segment(name, 1), name.segment(1))
        assert segment.torn_bytes == 41


def test_the_golden_ledger_names_the_golden_seals() -> None:
    """The golden ledger reads, and lists the takes of the golden log."""
    (ledger,) = read_chain(LAYOUT.ledgers)
    assert sorted(ledger.seals) == [str(name) for name in LAYOUT.takes()]


def test_golden_files_hold_no_path_of_a_machine() -> None:
    """No golden file holds an absolute path, a home folder or a URL."""
    assert len(files()) == 12
    for path in files():
        text = path.read_text()
        assert str(Path.home()) not in text
        assert "://" not in text
        assert re.findall(r'["\s=]~?/[A-Za-z]', text) == []
