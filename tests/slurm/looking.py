"""Snakemake whose waits for jobs do not grow: SLURM's plugin looks ten seconds later each time.

On a user's cluster that spares the scheduler; here a job that ended would wait half a minute.
"""

import runpy
import sys
from pathlib import Path

from snakemake_interface_executor_plugins.executors.remote import RemoteExecutor

EVERY_S = 3.0
"""Seconds from one look at the jobs to the next."""


def _keep(executor: RemoteExecutor, request: float | None) -> None:
    """Leave the time of the next look as it is, whatever the plugin asks for."""


if __name__ == "__main__":
    sys.path[0] = str(Path.cwd())
    RemoteExecutor.next_seconds_between_status_checks = property(lambda _: EVERY_S, _keep)
    runpy.run_module("snakemake", run_name="__main__", alter_sys=True)
