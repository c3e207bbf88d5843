"""The build step of a wheel: beside the package, the config, rules and constants of answers.

They stay in their own rooms of the clone, under config/, results/ and envs/; the wheel's copy is
made as it is built. Only tracked files go in, so nothing that a machine measured by itself, and of
several takes of a release's rules the newest, the one that is read.
"""

import shutil
import subprocess
import sys
from pathlib import Path

from setuptools.command.build_py import build_py
from setuptools.errors import SetupError

SHIPPED = ("config", "results/events", "envs/engines.lock")


class BuildPy(build_py):
    """Build the package; in a wheel with `nearfree/data`, where files of a clone lie as in it."""

    def run(self) -> None:
        """Build anew: what an earlier build left would go into the wheel, too."""
        if self.editable_mode:
            super().run()
            return
        shutil.rmtree(self.build_lib, ignore_errors=True)
        super().run()
        data = Path(self.build_lib, "nearfree", "data")
        for name in tracked():
            (data / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(name, data / name)
        drop_superseded(data / "results")
        for path in Path(self.build_lib).rglob("*"):
            path.chmod(0o755 if path.is_dir() else 0o644)


def tracked() -> list[str]:
    """Return the tracked files that are shipped; SetupError outside of a clone."""
    try:
        listed = subprocess.run(
            ["git", "ls-files", "-z", "--", *SHIPPED], capture_output=True, check=True
        )
    except (OSError, subprocess.CalledProcessError) as error:
        message = "a wheel is built in a clone: git says which files are shipped with it"
        raise SetupError(message) from error
    names = listed.stdout.decode().split("\0")[:-1]
    for kind in SHIPPED:
        if not any(name.startswith(kind) for name in names):
            message = f"git tracks nothing under {kind}, which a wheel ships"
            raise SetupError(message)
    return names


def drop_superseded(results: Path) -> None:
    """Delete takes of a release's rules that a newer one stands for, or that were retracted."""
    sys.path.insert(0, str(Path(__file__).parent))
    from nearfree.core.scopes import SOURCES
    from nearfree.log.evidence import RETRACTED, read_scope
    from nearfree.log.names import Layout

    layout = Layout(results)
    takes = sorted(read_scope(layout, SOURCES), key=lambda take: take.order)
    newest = {take.name.stream: take.name for take in takes}
    for name in layout.takes(SOURCES):
        if name.stream != RETRACTED and name != newest.get(name.stream):
            layout.seal(name).unlink()
            for attempt in layout.attempts(name):
                layout.segment(name, attempt).unlink()
