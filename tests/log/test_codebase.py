"""The digest of code depends on what is imported, and on no other file."""

import ast
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import nearfree
import pytest
from nearfree.log.codebase import _imports, _modules, closure, digest, package_digest

PACKAGE = Path(nearfree.__file__).parent


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """Return a copy of the package, to be changed at will."""
    ignored = shutil.ignore_patterns("__pycache__")
    return Path(shutil.copytree(PACKAGE, tmp_path / "nearfree", ignore=ignored))


def digests(copy: Path, *modules: str) -> list[str]:
    """Return the digest of each module of a copy and of the whole package, from a new process."""
    program = (
        "import sys; from nearfree.log.codebase import digest, package_digest;"
        "print(*map(digest, sys.argv[1:]), package_digest())"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, *modules],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": str(copy.parent), "PYTHONDONTWRITEBYTECODE": "1"},
    )
    return done.stdout.split()


def append(text: str) -> Callable[[Path], None]:
    """Return a change that adds text to a file."""

    def change(path: Path) -> None:
        path.write_bytes(path.read_bytes() + text.encode())

    return change


def test_the_closure_follows_imports() -> None:
    """A module's closure holds the module, what it imports, and what that imports in turn."""
    modules = closure("nearfree.core.boundary")
    assert modules == ["nearfree.core.boundary", "nearfree.core.protocols", "nearfree.errors"]
    assert {"nearfree.derive.tables.latency", "nearfree.core.boundary", "nearfree.units"} <= set(
        closure("nearfree.derive.tables.project")
    )


@pytest.mark.slow
def test_every_import_is_found() -> None:
    """In each file of the package, the imports found are those of its syntax tree."""
    for path in PACKAGE.rglob("*.py"):
        names: set[str] = set()
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, ast.Import):
                names |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module:
                names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
        assert _imports(path) == names & _modules().keys(), path


def test_the_closure_follows_lazy_imports() -> None:
    """An import inside a function counts like any other."""
    assert "nearfree.hardware.platforms" in closure("nearfree.cli.common")
    assert "nearfree.log.adopt" in closure("nearfree.cli.log")


def test_the_closure_stays_inside_the_package() -> None:
    """Modules of others, and names that are no modules, are not in a closure."""
    assert all(name.startswith("nearfree.") for name in closure("nearfree.derive.tables.project"))
    assert closure("polars") == []
    assert closure("nearfree.nothing") == []


def test_a_copy_has_the_same_digest(copy: Path) -> None:
    """The digest does not depend on the folder of the package."""
    name = "nearfree.derive.tables.project"
    assert digests(copy, name) == [digest(name), package_digest()]


@pytest.mark.parametrize("imported", ["core/boundary.py", "derive/tables/schema.py", "log/line.py"])
def test_a_change_of_an_imported_module_shows(copy: Path, imported: str) -> None:
    """One more byte in an imported module changes the digest."""
    before = digests(copy, "nearfree.derive.tables.project")
    append("\n")(copy / imported)
    after = digests(copy, "nearfree.derive.tables.project")
    assert all(one != other for one, other in zip(before, after, strict=True))


@pytest.mark.parametrize("unrelated", ["show/figures/theme.py", "cli/log.py", "measure/run.py"])
def test_a_change_of_an_unrelated_module_does_not_show(copy: Path, unrelated: str) -> None:
    """A change of a module that is not imported changes only the package's digest."""
    before, package_before = digests(copy, "nearfree.derive.tables.project")
    append("\n")(copy / unrelated)
    after, package_after = digests(copy, "nearfree.derive.tables.project")
    assert (before == after, package_before == package_after) == (True, False)


def test_a_change_behind_a_lazy_import_shows(copy: Path) -> None:
    """A change of a module that is imported inside a function changes the digest."""
    before = digests(copy, "nearfree.cli.common")
    append("# more\n")(copy / "hardware" / "platforms.py")
    assert digests(copy, "nearfree.cli.common")[0] != before[0]


def test_a_new_module_counts_when_it_is_imported(copy: Path) -> None:
    """A new file changes the package's digest, and a module's only once that imports it."""
    name = "nearfree.derive.tables.project"
    first = digests(copy, name)
    (copy / "extra.py").write_text("X = 1\n")
    second = digests(copy, name)
    append("from nearfree import extra\n")(copy / "core" / "boundary.py")
    third = digests(copy, name)
    append("Y = 2\n")(copy / "extra.py")
    fourth = digests(copy, name)
    assert (first[0] == second[0], first[1] == second[1]) == (True, False)
    assert len({second[0], third[0], fourth[0]}) == 3


def test_a_change_of_the_page_shows(copy: Path) -> None:
    """The report's digest changes with its template, style and script, which make it as well."""
    seen = {digests(copy, "nearfree.show.page.stage")[0]}
    for name in ("page.html", "page.css", "panel.js"):
        append(" ")(copy / "show" / "page" / "assets" / name)
        seen.add(digests(copy, "nearfree.show.page.stage")[0])
    assert len(seen) == 4


def test_a_digest_of_several_modules_ignores_their_order() -> None:
    """The digest of several modules is the same in any order."""
    one, other = "nearfree.core.boundary", "nearfree.hardware.clocks"
    assert digest(one, other) == digest(other, one) != digest(one)
