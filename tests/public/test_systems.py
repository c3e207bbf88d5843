"""System files: facts are read, names resolved, and differences reported."""

from pathlib import Path

import pytest
from nearfree.config.files import Config
from nearfree.errors import SourceError
from nearfree.public.aiconfigurator import differences, read_system

from public.tables import SYSTEM

PLATFORMS = Config(Path(__file__).parents[2] / "config").platforms
TEXT = SYSTEM.format(bandwidth=3_350_000_000_000)


def test_facts_and_name() -> None:
    """A system's facts are in the project's units, under the platform's own name."""
    system = read_system("h100_sxm", TEXT, PLATFORMS)
    assert (system.platform, system.known) == ("h100", True)
    assert system.facts.peak_tflops == {"bfloat16": 989.0, "float8": 1978.0}
    assert system.facts.bandwidth_gb_s == 3350.0
    assert system.notice == "Copyright (c) 2030 Somebody. All rights reserved."
    assert list(differences(system, PLATFORMS["h100"])) == []


def test_a_fact_that_only_the_source_has_is_told() -> None:
    """A peak that the config lacks is reported."""
    system = read_system("a100_sxm", TEXT, PLATFORMS)
    messages = list(differences(system, PLATFORMS["a100"]))
    assert "a100: float8 peak, TFLOP/s: none here, 1978 in a100_sxm.yaml" in messages
    assert len(messages) == 3


@pytest.mark.parametrize(
    ("text", "what"),
    [
        (TEXT.replace("mem_bw", "other"), "has no mem_bw"),
        (TEXT.replace("3350000000000", "-1"), "has no mem_bw"),
        (TEXT.replace("3350000000000", "9" * 30), "has no mem_bw"),
        (TEXT.replace("bfloat16_tc_flops", "other"), "has no bfloat16_tc_flops"),
        (TEXT.replace("SPDX", "X"), "has no copyright line"),
        ("", "has no mem_bw"),
    ],
)
def test_a_file_of_another_form(text: str, what: str) -> None:
    """A file without a fact in its known form is refused by name."""
    with pytest.raises(SourceError, match=rf"h100_sxm\.yaml {what}"):
        read_system("h100_sxm", text, PLATFORMS)


def test_a_name_that_cannot_be_a_platform() -> None:
    """An unknown system whose name cannot be a folder is refused."""
    with pytest.raises(SourceError, match="no platform can have"):
        read_system("GB 999", TEXT, PLATFORMS)
