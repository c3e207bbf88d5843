"""Everything of a log made again by the code at hand.

    python tests/golden/remake.py [--tables] OLD CONFIG NEW

OLD is a results root or a golden root, CONFIG the config folder of its time, and NEW a folder that
is not there yet. It gets the events of OLD, and tables, figures and a report made from them; then
`python tests/golden/compare.py OLD NEW` says what differs.
"""

import argparse
import shutil
from pathlib import Path

from nearfree.pipeline.pipeline import Pipeline
from nearfree.prove.audit.recompute import make_all
from nearfree.show.page.stage import report_of

LOG = ("events", "ledger")
"""What a results root cannot be made without."""


def remake(old: Path, config: Path, new: Path, *, drawn: bool = True) -> None:
    """Copy the log of a root, and make all of it under a config folder.

    Parameters
    ----------
    drawn
        Whether figures and the report are made, too, which takes most of the time.
    """
    for name in LOG:
        if (old / name).is_dir():
            shutil.copytree(old / name, new / name)
    pipeline = Pipeline(new, config)
    make_all(pipeline, figures=drawn)
    if drawn:
        report_of(pipeline)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("old", type=Path, metavar="OLD", help="a results root")
    parser.add_argument("config", type=Path, metavar="CONFIG", help="a config folder")
    parser.add_argument("new", type=Path, metavar="NEW", help="a folder that is not there yet")
    parser.add_argument("--tables", action="store_true", help="make nothing but the tables")
    args = parser.parse_args()
    remake(args.old, args.config, args.new, drawn=not args.tables)
