"""Starting and stopping a cluster: one at a time, and nothing of it stays."""

import time

import pytest

from slurm import daemons, link
from slurm.cluster import Cluster
from slurm.daemons import SlurmError


def test_a_cluster_that_was_left_behind_is_stopped(machine, tmp_path_factory):
    """Another start ends the first cluster's processes and takes over; stopping leaves nothing."""
    first, second = (Cluster(tmp_path_factory.mktemp(name)) for name in ("first", "second"))
    began = time.monotonic()
    first.start()
    assert time.monotonic() - began < 10
    pid_files = sorted(first.folder.glob("*.pid"))
    assert len(pid_files) == 6
    assert all(map(daemons.living, pid_files))
    second.start()
    assert not any(map(daemons.living, pid_files))
    assert link.linked() == second.folder
    second.stop()
    assert link.linked() is None
    assert not any(map(daemons.living, second.folder.glob("*.pid")))


def test_a_link_to_nothing_is_replaced_and_a_foreign_file_is_not(tmp_path, monkeypatch):
    """A site's own configuration is named and left as it is."""
    monkeypatch.setattr(link, "LINK", tmp_path / "slurm.conf")
    link.LINK.symlink_to(tmp_path / "gone")
    link.make_link(tmp_path / "conf")
    assert link.LINK.readlink() == tmp_path / "conf"
    link.LINK.unlink()
    link.LINK.write_text("ClusterName=site\n")
    with pytest.raises(SlurmError, match=r"left alone"):
        Cluster(tmp_path / "mine").start()
    assert link.LINK.read_text() == "ClusterName=site\n"
    assert not (tmp_path / "mine").exists()
