"""`snakemake --profile slurm` on a machine without SLURM ends soon with one message."""

import shutil
import time
from pathlib import Path

import pytest

from slurm.site import Site, make_site

pytestmark = pytest.mark.slow


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Site:
    """Return a project where no command of SLURM is on PATH."""
    commands = tmp_path / "bin"
    commands.mkdir()
    for name in ("bash", "sh", "git", "which"):
        (commands / name).symlink_to(str(shutil.which(name)))
    monkeypatch.setenv("PATH", str(commands))
    return make_site(tmp_path / "site")


def ran(site: Site, *options: str) -> tuple[str, int]:
    """Run the workflow; return its output and exit code."""
    run = site.start(*options)
    return site.end(run, 60), run.returncode


def test_without_slurm_one_message_names_it(site):
    """The run ends within 20 s, names SLURM and a remedy, and starts nothing."""
    began = time.monotonic()
    output, code = ran(site)
    assert time.monotonic() - began < 20
    assert code != 0
    (line,) = (line for line in output.splitlines() if "SLURM" in line)
    assert line.startswith("nearfree: error: SLURM is not here: there is no sbatch on PATH")
    assert "Traceback" not in output
    assert not (site / "results/events").exists()


def test_a_dry_run_needs_no_slurm(site):
    """What would run is listed on any machine."""
    output, code = ran(site, "-n")
    assert code == 0, output
    assert "rule measure:" in output
