"""What comes with the package: a config, rules and constants, to answer where no project is.

A wheel holds them under `nearfree/data`; in a clone they are the clone's own.
"""

from pathlib import Path

CLONE = Path(__file__).parents[2]
WHEEL = Path(__file__).parent / "data"
FOLDERS = ("config", "results")
"""The folders of a project."""


def shipped(name: str) -> Path:
    """Return the path of a shipped file or folder, by its path in a clone."""
    return (WHEEL if WHEEL.is_dir() else CLONE) / name


def folder(name: str) -> Path:
    """Return a folder of the project in the working folder, or the shipped one if there is none.

    A working folder with either of the two is a project: nothing shipped is mixed into it.
    """
    in_project = any(Path(each).exists() for each in FOLDERS)
    return Path(name) if in_project else shipped(name)
