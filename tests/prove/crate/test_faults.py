"""Crates with one fault each are rejected by the right check, for the right reason."""

import subprocess
import sys
from itertools import filterfalse
from operator import attrgetter
from pathlib import Path

import pytest
from nearfree.prove.crate.check import check_crate
from once import one_in
from prove.crate.faults import FAULTS, Fault
from prove.crate.validator import issues, no_network

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::DeprecationWarning")]
SEEN = attrgetter("validator")
OF_PROFILE = [*filter(SEEN, FAULTS)]
"""What the independent validator sees; of these a commit draws which are made alone."""
BY_NAME = pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)


def messages(crate: Path) -> list[str]:
    """Return the findings of `--verify`."""
    return [f"{finding.path} {finding.message}" for finding in check_crate(crate)]


def test_a_sound_crate_passes_both(written: Path, cache: Path) -> None:
    """A sound crate passes the validator's REQUIRED checks, offline, and our own check."""
    assert issues(written, cache) == set()
    assert messages(written) == []


@BY_NAME
def test_verify_rejects_every_fault(fault: Fault, crate: Path) -> None:
    """Our own check finds each fault, those of the profile included, and names it."""
    fault.harm(crate)
    findings = messages(crate)
    assert fault.verify is not None
    assert any(fault.verify in line for line in findings), findings


@pytest.mark.parametrize("fault", OF_PROFILE[one_in(5, "faults")], ids=lambda fault: fault.name)
def test_the_validator_rejects_what_breaks_the_profile(
    fault: Fault, crate: Path, cache: Path
) -> None:
    """The independent validator names each fault of the profile."""
    fault.harm(crate)
    reported = issues(crate, cache)
    assert any(str(fault.validator) in line for line in reported), reported


@pytest.mark.parametrize("faults", [OF_PROFILE[:1], OF_PROFILE[1:]], ids=["first", "others"])
def test_the_validator_names_every_fault(faults: list[Fault], crate: Path, cache: Path) -> None:
    """The validator names every profile fault of a crate that has all but one of them."""
    for fault in faults:
        fault.harm(crate)
    reported = issues(crate, cache)
    assert [
        fault.name for fault in faults if not any(str(fault.validator) in x for x in reported)
    ] == []


def test_the_validator_sees_no_other_fault(crate: Path, cache: Path) -> None:
    """Faults that only `--verify` finds do not violate the profile, even together."""
    for fault in filterfalse(SEEN, FAULTS):
        fault.harm(crate)
    assert issues(crate, cache) == set()


def test_the_network_is_really_shut() -> None:
    """The network block refuses and lists any connection."""
    import requests

    with no_network() as tried, pytest.raises(requests.ConnectionError):
        requests.get("https://w3id.org/ro/crate/1.1/context", timeout=5)
    assert tried


def test_nothing_but_tests_needs_the_validator() -> None:
    """Writing and verifying a crate import no RO-Crate library and no library of tables."""
    program = (
        "import sys, nearfree.prove.crate.write, nearfree.prove.crate.check\n"
        "large = {'rocrate', 'rocrate_validator', 'rdflib', 'polars', 'altair'}\n"
        "assert not large & sys.modules.keys()"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
