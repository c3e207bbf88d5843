"""Copies of the built project, to change."""

import shutil
from pathlib import Path

import pytest

from workflow import NO_NETWORK, ROOT, Project


@pytest.fixture
def project(built: Project, tmp_path: Path) -> Project:
    """Return a copy of the built project to change."""
    return built.copy(tmp_path / "project")


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let nothing be fetched, or found where it was fetched to."""
    for name, value in NO_NETWORK.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
def with_rules(project: Project) -> Project:
    """Ask for one release, whose rules the repository has on record."""
    recorded = "results/events/sources/flashinfer_python_0_6_13"
    shutil.copytree(ROOT / recorded, project / recorded)
    (project / "config/sources.yaml").write_text("releases:\n  - flashinfer-python==0.6.13\n")
    return project
