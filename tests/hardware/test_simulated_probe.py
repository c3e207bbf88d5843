"""The probe of a simulated machine: the datasheet's facts, under its own name."""

import pytest
from derive.tables.logs import write_probe
from nearfree.errors import ConfigError, EvidenceError, HardwareError
from nearfree.hardware.identity import require_probe
from nearfree.hardware.simulated import simulate_probe
from nearfree.log.names import Layout
from simulated_machine import make_machine, simulated_probe


def test_a_probe_holds_the_datasheets_facts(layout: Layout) -> None:
    """The probe has beta, and phi of the file's dtypes; no samples, since nothing was timed."""
    machine = make_machine()
    simulate_probe(layout, "h20", 1, simulated_probe(machine), machine)
    probe = require_probe(layout, "h20")
    assert probe.fingerprint == machine.fingerprint
    assert [(peak.dtype, peak.gflop_s, peak.samples) for peak in probe.compute] == [
        ("bfloat16", 148_000.0, ())
    ]
    assert [(peak.method, peak.gb_s, peak.samples) for peak in probe.bandwidth] == [
        ("stream", 4000.0, ())
    ]


def test_it_is_sealed_once(layout: Layout) -> None:
    """The same plan again returns the same seal."""
    machine = make_machine()
    plan = simulated_probe(machine)
    first, second = (simulate_probe(layout, "h20", 1, plan, machine) for _ in range(2))
    assert first.segments == second.segments


def test_another_datasheet_is_another_machine(layout: Layout) -> None:
    """A curve file with facts other than those on record is refused."""
    machine, other = make_machine(), make_machine(cores=80)
    simulate_probe(layout, "h20", 1, simulated_probe(machine), machine)
    with pytest.raises(HardwareError, match="cores is 80, not 78"):
        simulate_probe(layout, "h20", 1, simulated_probe(other), other)


def test_a_plan_of_another_file_is_refused(layout: Layout) -> None:
    """A plan whose digest is not the curve file's is refused."""
    machine = make_machine()
    with pytest.raises(ConfigError, match="another curve file"):
        simulate_probe(layout, "h20", 1, simulated_probe(make_machine(cores=80)), machine)


def test_it_shares_no_root_with_a_real_probe(layout: Layout) -> None:
    """Where a real machine is on record, a simulated probe is refused."""
    write_probe(layout, "cpu")
    machine = make_machine()
    with pytest.raises(EvidenceError, match="holds measured takes of cpu"):
        simulate_probe(layout, "h20", 1, simulated_probe(machine), machine)
    assert not layout.takes("h20")
