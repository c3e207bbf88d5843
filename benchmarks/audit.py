"""Time of the full audit, as a ratio to reading and hashing every byte of the root.

The root holds this repository's log, and tables and figures that are made first.
"""

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from nearfree.log.names import Layout
from nearfree.log.verify import verify
from nearfree.pipeline.pipeline import Pipeline
from nearfree.prove.audit.full_audit import audit_all
from nearfree.prove.audit.recompute import make_all, scratch_root

ROOT = Path(__file__).parents[1]
Result = TypeVar("Result")


def timed(function: Callable[[], Result]) -> tuple[float, Result]:
    """Return a function's run time in seconds, and its result."""
    start_s = time.perf_counter()
    result = function()
    return time.perf_counter() - start_s, result


def main() -> None:
    """Print the times."""
    with tempfile.TemporaryDirectory() as folder:
        root = scratch_root(Layout(ROOT / "results"), Path(folder) / "results")
        config = ROOT / "config"
        if not root.takes("cpu"):
            print("no take of this machine: only what the repository holds is audited")
        made_s, _ = timed(lambda: make_all(Pipeline(root.root, config), figures=True))
        read_s, _ = timed(lambda: verify(root.root))
        audit_s, audit = timed(lambda: audit_all(root, config))
        print(f"{audit.rows} rows, {audit.marks} marks, {len(audit.findings)} findings")
        print(f"every byte read and hashed     1.0   ({read_s:.1f} s)")
        print(f"everything made, figures drawn {made_s / read_s:4.1f}")
        print(f"everything audited             {audit_s / read_s:4.1f}")
        print(f"audited, per 100,000 rows      {audit_s / audit.rows * 1e5 / read_s:4.1f}")


if __name__ == "__main__":
    main()
