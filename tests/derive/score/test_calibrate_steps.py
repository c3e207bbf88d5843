"""What constants of engines' steps are fitted with: another take of it asks for another fit."""

import shutil
from pathlib import Path

import pytest
from nearfree.derive.score.calibrate_steps import evidence_digests
from nearfree.log.names import Layout

from derive.questions import LOG

STREAMS = ("kernels", "constants", "collective_constants")


@pytest.mark.parametrize("stream", STREAMS)
def test_steps_rest_on_every_take_that_times_a_module(stream: str, tmp_path: Path) -> None:
    """Kernels, shared constants and those of collectives: none may change behind a fit."""
    found = evidence_digests(LOG)
    assert {take.split("/")[1] for take in found} == {*STREAMS}
    less = Layout(tmp_path)
    for each in STREAMS:
        if each != stream:
            shutil.copytree(LOG.events / "public" / each, less.events / "public" / each)
    assert evidence_digests(less) == {
        take: sha for take, sha in found.items() if f"/{stream}/" not in take
    }
