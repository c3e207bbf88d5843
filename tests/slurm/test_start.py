"""Starting and stopping a cluster: one at a time, and nothing of it stays."""

from pathlib import Path

import pytest

from slurm import daemons, link
from slurm.cluster import Cluster
from slurm.conf import free_ports
from slurm.daemons import SlurmError


def test_a_cluster_that_was_left_behind_is_stopped(machine, tmp_path_factory):
    """Another start ends the first cluster's processes and takes over; stopping leaves nothing."""
    first, second = (Cluster(tmp_path_factory.mktemp(name)) for name in ("first", "second"))
    first.start()
    pid_files = sorted(first.folder.glob("*.pid"))
    assert len(pid_files) == 6
    assert all(map(daemons.living, pid_files))
    second.start()
    assert not any(map(daemons.living, pid_files))
    assert link.linked() == second.folder
    second.stop()
    assert link.linked() is None
    assert not any(map(daemons.living, second.folder.glob("*.pid")))


def test_a_daemon_that_does_not_start_at_once_is_tried_again(tmp_path):
    """A start fails while the daemon before it still ends, as after a node was lost."""
    gone = tmp_path / "gone"
    daemons.start("sh", "-c", f"test -e {gone} || {{ touch {gone}; exit 1; }}")
    assert gone.exists()


def test_a_daemon_that_never_starts_says_all_that_it_said(tmp_path, monkeypatch):
    """The error quotes slurmd's log, because slurmd has detached from its terminal."""
    monkeypatch.setattr(daemons, "_START_S", 0)
    log = tmp_path / "slurmd.log"
    log.write_text("earlier\nerror: Unable to bind listen port\n")
    with pytest.raises(SlurmError, match=r"(?s)exit code 3.*spoken.*Unable to bind listen port"):
        daemons.start("sh", "-c", "echo spoken >&2; exit 3", log=log)


def test_ports_are_none_that_a_connection_is_given():
    """A connection of another program cannot take a daemon's port while it is down."""
    lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    ports = free_ports(50)
    assert len(set(ports)) == 50
    assert max(ports) < lowest


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
