"""Start or stop a cluster by hand: `python -m slurm up FOLDER`, `python -m slurm down FOLDER`."""

import sys
from pathlib import Path

from slurm.cluster import Cluster, lacking
from slurm.daemons import SlurmError


def main(words: list[str]) -> str | None:
    """Run the command of the arguments; return the error, if any."""
    if len(words) != 2 or words[0] not in {"up", "down"}:
        return __doc__
    reason = lacking()
    if reason:
        return reason
    cluster = Cluster(Path(words[1]))
    try:
        cluster.start() if words[0] == "up" else cluster.stop()
    except (SlurmError, OSError) as error:
        return str(error)
    return None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
