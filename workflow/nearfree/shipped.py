"""Files shipped with the package: config, rules and constants, for use outside a project.

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
    """Return `config` or `results` of the project in the working folder, or else the shipped one.

    A working folder with either of the two is a project, and uses no shipped folder.
    """
    in_project = any(Path(project_folder).exists() for project_folder in FOLDERS)
    return Path(name) if in_project else shipped(name)
