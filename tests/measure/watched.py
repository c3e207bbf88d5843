"""A platform that is this machine, and takes of small models on it; run, it is one that dies.

`watched.py ROOT COUNT` measures, and kills itself once COUNT shares were appended.
"""

import os
import signal
import sys
from pathlib import Path

from derive.tables.logs import write_probe
from nearfree.config.model_studies import model_sweeps
from nearfree.core.plan import MeasurePlan
from nearfree.hardware.identity import cpu_fingerprint
from nearfree.log.events import Payload, SharesMeasured
from nearfree.log.names import Layout
from nearfree.log.seal import Seal
from nearfree.log.take import OpenTake
from nearfree.measure.run import measure
from whole_models import DENSE, LING, model_study, plan_of, small

POINTS = 4


def plan(kind: str = DENSE) -> MeasurePlan:
    """Return the plan of a small model's take with the points of POINTS."""
    changes = {"routing": ["skewed"]} if kind == LING else {}
    model = small(kind)
    return plan_of(model, model_sweeps(model_study(kind, **changes), model))


def known(layout: Layout) -> Layout:
    """Return a log that knows this machine as the platform cpu."""
    write_probe(layout, fingerprint=cpu_fingerprint())
    return layout


def take(layout: Layout, plan: MeasurePlan) -> Seal:
    """Make sure that a plan is sealed."""
    return measure(layout, "cpu", "small", 1, plan)


def die_after(count: int) -> None:
    """Let this process be killed once so many shares were appended."""
    append = OpenTake.append
    seen = []

    def watched(self: OpenTake, data: Payload, *, sync: bool = True) -> str:
        event_id = append(self, data, sync=sync)
        seen.extend([data] if isinstance(data, SharesMeasured) else [])
        if len(seen) == count:
            os.kill(os.getpid(), signal.SIGKILL)
        return event_id

    OpenTake.append = watched  # type: ignore[method-assign]


if __name__ == "__main__":
    die_after(int(sys.argv[2]))
    take(Layout(Path(sys.argv[1])), plan())
