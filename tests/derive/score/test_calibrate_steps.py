"""The inputs of a fit of engines' steps: another take of them needs another fit."""

import shutil
from pathlib import Path

import pytest
from nearfree.derive.score.calibrate_steps import evidence_digests
from nearfree.log.names import Layout

from derive.questions import LOG

STREAMS = ("kernels", "constants", "collective_constants")


@pytest.mark.parametrize("stream", STREAMS)
def test_steps_rest_on_every_take_that_times_a_module(stream: str, tmp_path: Path) -> None:
    """The fit depends on takes of kernels, shared constants and collectives."""
    digests = evidence_digests(LOG)
    assert {take.split("/")[1] for take in digests} == {*STREAMS}
    less = Layout(tmp_path)
    for stream_ in STREAMS:
        if stream_ != stream:
            shutil.copytree(LOG.events / "public" / stream_, less.events / "public" / stream_)
    assert evidence_digests(less) == {
        take: sha for take, sha in digests.items() if f"/{stream}/" not in take
    }
