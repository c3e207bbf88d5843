"""The golden logs: later code makes the same of them, and every command goes on with them."""

import shutil
from contextlib import chdir, redirect_stdout
from io import StringIO
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import polars as pl
import pytest
import vl_convert
from altair.utils import schemapi
from nearfree.cli import main
from nearfree.derive.jobs import TABLES
from nearfree.log.events import VERSIONS
from once import made_once, one_in

from golden.answers import answers
from golden.compare import content, derived, differences
from golden.remake import LOG
from workflow import ROOT

HERE = Path(__file__).parent
LOGS = sorted(path.parent for path in HERE.glob("*/*/root"))
TRIED = LOGS[one_in(4, "golden")]
PARTS = ("Snakefile", "rules")
"""The files of a project, besides its config, that a crate holds."""
DERIVED = ("tables", "figures", "report")
PICTURE = '<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9" viewBox="0 0 9 9"></svg>'
SCRIPT = "// draws nothing"
SHOWN = 20


class Remade(NamedTuple):
    """A golden log, and a project in which everything was made of it again."""

    golden: Path
    folder: Path

    @property
    def last(self) -> int:
        """The number of the newest ledger."""
        return len(list((self.golden / "root/ledger/local").iterdir()))

    def run(self, *words: str) -> str:
        """Run a command in the project, and return its output; fail if it failed."""
        out = StringIO()
        with chdir(self.folder), redirect_stdout(out), pytest.raises(SystemExit) as ended:
            main(words)
        assert not ended.value.code, out.getvalue()
        return out.getvalue()


def place(log: Path) -> str:
    """Return a golden log's version and name."""
    return str(log.relative_to(HERE))


def some_of(share: int) -> pytest.MarkDecorator:
    """Return the mark of a test that needs only one golden log in `share`."""
    drawn = TRIED[one_in(share, "golden")]
    return pytest.mark.parametrize("remade", drawn, indirect=True, ids=place)


FEW = TRIED[one_in(2, "few")]
EACH = [pytest.param(log, marks=() if log in FEW else pytest.mark.slow) for log in TRIED]
"""The logs that a commit draws, half of them for slow tests alone."""


@pytest.fixture(scope="module", params=EACH, ids=map(place, TRIED))
def remade(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Remade:
    """Return a golden log with all that the code at hand makes of its newest ledger.

    Nothing is drawn or held against Vega-Lite's schema: figures are compared by what they draw.
    """
    golden: Path = request.param
    name = "_".join(("golden", *golden.relative_to(HERE).parts))
    return Remade(golden, made_once(tmp_path_factory, name, lambda to: make_again(golden, to)))


def make_again(golden: Path, folder: Path) -> None:
    """Write a project with a golden log, and with all that is made of it, to a folder."""
    shutil.copytree(golden, folder, ignore=shutil.ignore_patterns("root"))
    for name in LOG:
        shutil.copytree(golden / "root" / name, folder / "results" / name)
    for part in PARTS:
        (folder / part).symlink_to(ROOT / part)
    remade = Remade(golden, folder)
    with pytest.MonkeyPatch.context() as patch:
        without_drawing(patch, folder)
        remade.run("report", "--as-of", str(remade.last), "--other-code")
    for name in DERIVED:
        made = folder / "results/as_of" / f"{remade.last:06}" / "results" / name
        shutil.move(made, folder / "results" / name)
    shutil.rmtree(folder / "results/as_of")


def without_drawing(patch: pytest.MonkeyPatch, folder: Path) -> None:
    """Leave out pictures and what draws them, schemas and fetched files."""
    patch.setenv("NEARFREE_CACHE", str(folder / "no" / "cache"))
    patch.setattr(vl_convert, "vegalite_to_svg", lambda *_, **__: PICTURE)
    patch.setattr(vl_convert, "javascript_bundle", lambda *_, **__: SCRIPT)
    patch.setattr(schemapi, "DEBUG_MODE", False)


@pytest.fixture(autouse=True)
def undrawn(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Do not draw figures in the tests' own process either."""
    without_drawing(monkeypatch, tmp_path)


@pytest.fixture
def copied(remade: Remade, tmp_path: Path) -> Remade:
    """Return a copy of the project, to be changed at will."""
    shutil.copytree(remade.folder, tmp_path, dirs_exist_ok=True)
    return Remade(remade.golden, tmp_path)


def test_everything_is_made_again(remade: Remade) -> None:
    """Tables are equal cell by cell, and so are figures' data, report's numbers and answers."""
    old = content(remade.golden / "root")
    new = content(remade.folder / "results") | answers(remade.run)
    differing = list(islice(differences(old, new), SHOWN))
    assert differing == [], "\n".join(map(str, differing))


@pytest.mark.slow
@some_of(2)
def test_what_was_made_again_is_audited_and_crated(copied: Remade) -> None:
    """Made again and in a ledger of this code, an old log passes the audit and makes a crate."""
    assert "; 0 differences" in copied.run("audit", "--all")
    copied.run("ledger")
    copied.run("crate", "crate")
    assert "0 damaged" in copied.run("crate", "--verify", "crate")


@pytest.mark.slow
@some_of(2)
def test_ledgers_are_compared(remade: Remade) -> None:
    """`diff` lists changes from the first ledger to the last: none, if there is only one."""
    output = remade.run("diff", "1", str(remade.last))
    assert ("no number differs" in output) == (remade.last == 1)


def test_the_log_goes_on(copied: Remade) -> None:
    """What old code wrote verifies, an interrupted take is sealed, and a sealed one retracted."""
    assert "0 damaged" in copied.run("verify")
    for line in copied.run("log", "recover").splitlines():
        if ":" in line:
            take = line.partition(":")[0].rpartition(".")[0]
            assert "sealed as partial" in copied.run("log", "recover", take)
    assert copied.run("log", "recover") == "no interrupted takes\n"
    take = "public/near_free_parallelism/1-02f8ec6e"
    assert f"retracts {take}" in copied.run("log", "retract", take, "--reason", "a test")
    assert "0 damaged" in copied.run("verify")


def test_golden_logs_hold_every_event_and_table() -> None:
    """Each event version and each table with rows is in some golden log: a new one needs one."""
    versions = HERE.parent.glob("log/golden_versions/log/events/*/*/*.jsonl")
    logs = (*HERE.glob("*/*/root/events/*/*/*.jsonl"), *versions)
    lines = [path.read_text() for path in logs]
    missing = [p.type_name for p in VERSIONS if not any(p.type_name in line for line in lines)]
    assert missing == [], "write the golden logs of this version: tests/golden/make.py"
    tables = HERE.glob("*/*/root/tables/*/*.parquet")
    assert {path.stem for path in tables if pl.read_parquet(path).height} == TABLES.keys()


@pytest.mark.parametrize("log", LOGS, ids=place)
def test_golden_logs_are_of_no_machine(log: Path) -> None:
    """No golden file holds an absolute path, a home folder or a URL."""
    texts = [path.read_text() for path in log.rglob("*.json*") if path.suffix != ".gz"]
    texts.append(str(derived(log / "root")))
    for text in texts:
        assert "://" not in text
        assert not any(needle in text for needle in ('"/home', '"/root', '"/tmp', "'/", "~/"))


def test_a_difference_is_named() -> None:
    """A changed cell, a missing row and a changed number are listed with place and values."""
    old = content(LOGS[0] / "root")
    place = "tables/cpu/boundaries"
    rows = dict(old[place]["rows"])
    first, second, *_ = rows
    rows[first] = rows[first] | {"n_max": 12345, "why": "reworded"}
    del rows[second]
    page = {"report/page/answer": ["1"]}
    differing = list(differences(old, old | {place: old[place] | {"rows": rows}} | page))
    assert [(difference.place, difference.path) for difference in differing] == [
        ("report/page/answer", ()),
        (place, ("rows", first, "n_max")),
        (place, ("rows", second)),
    ]
    assert f"{place}: rows {first} n_max (platform=cpu, " in str(differing[1])
    assert str(differing[1]).endswith("-> 12345")


@pytest.mark.parametrize(
    ("old", "new", "count"),
    [
        (0.1, 0.1 + 1e-9, 0),
        (0.1, 0.1 + 1e-6, 1),
        (-2.2e-16, 0.0, 0),
        (8, 8.0, 1),
        (8, 9, 1),
        ("a,1.3079076297164434,2", "a,1.3079076297164429,2", 0),
        ("a,1.3079076297164434,2", "a,1.3079176297164434,2", 1),
        ("a,1.31,2", "a,1.310,2", 1),
    ],
)
def test_the_last_bits_of_a_real_number_are_the_processors(
    old: object, new: object, count: int
) -> None:
    """Real numbers agree to six digits, in CSV too; integers and rounded numbers exactly."""
    assert len(list(differences({"answers": [old]}, {"answers": [new]}))) == count
