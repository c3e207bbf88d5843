"""The config, checked before anything runs, and what all rules share."""

import sys
from pathlib import Path

from nearfree.errors import NearfreeError
from nearfree.pipeline import IMPORTED, PUBLIC, SOURCES, Pipeline

RESULTS = config.get("results", "results")
CONFIG = config.get("config", "config")
REPORT = f"{RESULTS}/report/index.html"
LEDGER = f"{RESULTS}/state/ledger.json"
LOGS = config.get("logs", "logs")
# An import's seal is named after the file that was found, so a mark stands for it.
IMPORT = f"{LOGS}/import/{{stream}}.done"
ENVIRONMENT = "../envs/cpu.yaml"

try:
    PIPELINE = Pipeline(Path(RESULTS), Path(CONFIG))
except NearfreeError as error:
    print(f"nearfree: error: {error}", file=sys.stderr)
    sys.exit(2)


def nearfree(command):
    """Return a command of this workflow's interpreter, results root and config."""
    return (
        f"{sys.executable} -m nearfree {command} --results {RESULTS} --config {CONFIG}"
    )


wildcard_constraints:
    scope=r"[a-z0-9_]+",
    take=r"[0-9]+",
    plan8=r"[0-9a-f]{8}",
