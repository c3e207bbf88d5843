"""The configuration of the cluster: three nodes with a GPU each, and one without."""

import random
import socket
from itertools import islice
from pathlib import Path

GPUS = ("h20", "a800", "h800")
"""Types of GPU; a node and a partition are named after each."""
NODES = (*GPUS, "cpu")
MARK = "# A cluster for tests.\n"
"""The first line of the configuration, by which it is known again."""


def write_conf(folder: Path) -> Path:
    """Write slurm.conf and gres.conf with ports that are free, and return the first."""
    conf = folder / "slurm.conf"
    conf.write_text(MARK + _slurm(folder, *free_ports(1 + len(NODES))))
    devices = (f"NodeName={g} Name=gpu Type={g} File={folder}/dev/{g}/nvidia0\n" for g in GPUS)
    (folder / "gres.conf").write_text("".join(devices))
    return conf


_PORTS = range(10_000, 30_000)
"""Below those that Linux gives to connections, so that none takes a dead daemon's port."""


def free_ports(count: int) -> list[int]:
    """Return TCP ports that nobody listens on, and that no connection is given."""
    drawn = random.SystemRandom().sample(_PORTS, len(_PORTS))
    return list(islice(filter(_free, drawn), count))


def _free(port: int) -> bool:
    try:
        with socket.create_server(("127.0.0.1", port)):
            return True
    except OSError:
        return False


def _slurm(folder: Path, controller: int, *ports: int) -> str:
    host = socket.gethostname()
    nodes = "".join(
        f"NodeName={name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=2 "
        f"RealMemory=64000 State=UNKNOWN{f' Gres=gpu:{name}:1' if name in GPUS else ''}\n"
        for name, port in zip(NODES, ports, strict=True)
    )
    partitions = {"gpu": ",".join(GPUS), **{name: name for name in NODES}}
    return f"""\
ClusterName=tests
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller}
SlurmUser=root
SlurmdUser=root

AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/%n.log

ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherFrequency=task=1
JobAcctGatherParams=OverMemoryKill
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
DefMemPerCPU=500
SlurmdParameters=config_overrides
SchedulerParameters=bf_interval=1,sched_interval=1
GresTypes=gpu

JobRequeue=1
MinJobAge=3600
ReturnToService=2
SlurmdTimeout=4
KillWait=2
MessageTimeout=3
TCPTimeout=1
BatchStartTimeout=1

{nodes}""" + "".join(
        f"PartitionName={name} Nodes={members} Default={'YES' if name == 'cpu' else 'NO'} "
        "MaxTime=60 State=UP\n"
        for name, members in partitions.items()
    )
