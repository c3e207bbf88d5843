"""No rule is typed in by hand: what reads and answers knows no release by its number."""

import ast
import re
from pathlib import Path

import nearfree.sources
import pytest

ROOMS = ("language", "cpp", "backends", "answers")
FILES = [
    path
    for room in ROOMS
    for path in sorted((Path(nearfree.sources.__file__).parent / room).glob("*.py"))
]


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_no_version_is_compared(path: Path) -> None:
    """Readers and answers import no versions, and compare nothing that is called one."""
    tree = ast.parse(path.read_bytes())
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            assert not (node.module or "").startswith("packaging")
        if isinstance(node, ast.Compare):
            assert not re.search(r"\bversion\b", ast.unparse(node))
