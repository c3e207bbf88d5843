"""`nearfree cluster check` on a real cluster."""

import pytest

from slurm.site import Site, make_site


@pytest.fixture
def site(tmp_path) -> Site:
    """Return a project for the cluster."""
    return make_site(tmp_path / "site")


def test_every_platform_s_node_is_seen(slurm, site):
    """One job per platform runs where config/cluster.yaml says and reports its node and GPU."""
    lines = site.nearfree("cluster", "check").splitlines()
    places = {"cpu": "cpu", "fake_h20": "h20", "fake_a800": "a800", "fake_h800": "h800"}
    fine = [line for line in lines if ": fine;" in line]
    assert [line.split(":")[0] for line in fine] == list(places)
    for line, node in zip(fine, places.values(), strict=True):
        assert f" on {node} " in line
    assert {job.state for job in slurm.jobs()} == {"COMPLETED"}
    assert "slurm-status-command: squeue" in lines[-1]


def test_a_partition_that_is_not_there_is_told(slurm, site):
    """SLURM's error about a wrong partition stands beside its platform; others are tried."""
    site.edit("config/cluster.yaml", "{partition: cpu}", "{partition: nowhere}")
    done = site.run("nearfree", "cluster", "check")
    assert done.returncode == 2
    wrong = [line for line in done.stdout.splitlines() if "wrong" in line]
    assert wrong[0].startswith("cpu: wrong; asked for nowhere")
    assert "Invalid partition" in wrong[1]
    assert done.stdout.count(": fine;") == 3
    assert "Traceback" not in done.stderr
