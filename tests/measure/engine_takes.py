"""Takes of a real engine's forwards on this machine; run, it is one that dies.

`engine_takes.py ROOT KIND COUNT` measures, and kills itself once COUNT events of a kind were
appended.
"""

import os
import signal
import sys
from pathlib import Path

from derive.tables.logs import write_probe
from nearfree.config.engine_studies import engine_sweeps
from nearfree.config.files import Config
from nearfree.core.modules.engine import EngineStudy
from nearfree.core.plan import MeasurePlan
from nearfree.core.protocols import Interleaved
from nearfree.hardware.identity import cpu_fingerprint
from nearfree.log import events
from nearfree.log.events import Payload
from nearfree.log.names import Layout
from nearfree.log.seal import Seal
from nearfree.log.take import OpenTake
from nearfree.measure.run import measure

CONFIG = Path(__file__).parents[2] / "config"
ROUNDS, POINTS = 3, 6
"""A round's points: two orders of weights over three N."""


def plan() -> MeasurePlan:
    """Return the plan of a small study of the shipped weights, repacked and not."""
    config = Config(CONFIG)
    shipped = config.studies["llama_cpp_smollm2"]
    assert isinstance(shipped, EngineStudy)
    weights = config.weights_of(shipped)
    study = EngineStudy(
        backend=shipped.backend,
        release=shipped.release,
        model=shipped.model,
        platforms=("cpu",),
        context=(8,),
        repack=(True, False),
        positions=(1, 2, 3),
        protocol=Interleaved(rounds=ROUNDS, warmup=0, forwards=1),
    )
    return MeasurePlan(
        sweeps=engine_sweeps(study, weights),
        protocol=study.protocol,
        environment="cpu",
        weights={study.model: weights},
    )


def known(layout: Layout) -> Layout:
    """Return a log that knows this machine as the platform cpu."""
    write_probe(layout, fingerprint=cpu_fingerprint())
    return layout


def take(layout: Layout) -> Seal:
    """Make sure that the plan is sealed."""
    return measure(layout, "cpu", "engine", 1, plan())


def die_after(kind: type[Payload], count: int) -> None:
    """Let this process be killed once so many events of a kind were appended."""
    append = OpenTake.append
    seen = []

    def watched(self: OpenTake, data: Payload, *, sync: bool = True) -> str:
        event_id = append(self, data, sync=sync)
        seen.extend([data] if isinstance(data, kind) else [])
        if len(seen) == count:
            os.kill(os.getpid(), signal.SIGKILL)
        return event_id

    OpenTake.append = watched  # type: ignore[method-assign]


if __name__ == "__main__":
    die_after(getattr(events, sys.argv[2]), int(sys.argv[3]))
    take(Layout(Path(sys.argv[1])))
