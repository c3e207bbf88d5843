"""Making everything again and comparing, as ratios to reading what lies there.

Its root holds the log of this repository, and tables and figures that are made first.
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
_MADE = TypeVar("_MADE")


def timed(work: Callable[[], _MADE]) -> tuple[float, _MADE]:
    """Return the seconds that something took, and what it gave."""
    began = time.perf_counter()
    made = work()
    return time.perf_counter() - began, made


def main() -> None:
    """Print the times."""
    with tempfile.TemporaryDirectory() as folder:
        own = scratch_root(Layout(ROOT / "results"), Path(folder) / "results")
        config = ROOT / "config"
        if not own.takes("cpu"):
            print("no take of this machine: only what the repository holds is audited")
        made_s, _ = timed(lambda: make_all(Pipeline(own.root, config), figures=True))
        read_s, _ = timed(lambda: verify(own.root))
        audit_s, found = timed(lambda: audit_all(own, config))
        print(f"{found.rows} rows, {found.marks} marks, {len(found.findings)} findings")
        print(f"every byte read and hashed     1.0   ({read_s:.1f} s)")
        print(f"everything made, figures drawn {made_s / read_s:4.1f}")
        print(f"everything audited             {audit_s / read_s:4.1f}")
        print(f"audited, per 100,000 rows      {audit_s / found.rows * 1e5 / read_s:4.1f}")


if __name__ == "__main__":
    main()
