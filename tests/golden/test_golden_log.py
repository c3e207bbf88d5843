"""The golden logs: later code makes the same of them, and every command goes on with them."""

import shutil
from collections.abc import Iterator
from contextlib import chdir, redirect_stdout
from io import StringIO
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import polars as pl
import pytest
from nearfree.cli import main
from nearfree.events.types import PAYLOADS
from nearfree.stages import TABLES

from golden.answers import answers
from golden.compare import content, derived, differences
from golden.remake import remake
from workflow import ROOT

HERE = Path(__file__).parent
LOGS = sorted(path.parent for path in HERE.glob("*/*/root"))
PARTS = ("Snakefile", "rules")
"""What a crate holds of a project besides its config."""
SHOWN = 20


class Remade(NamedTuple):
    """A golden log, and a project in which everything was made of it again."""

    golden: Path
    folder: Path

    def copy(self, folder: Path) -> "Remade":
        """Return a copy of the project, to be changed at will."""
        shutil.copytree(self.folder, folder, dirs_exist_ok=True)
        return Remade(self.golden, folder)

    def run(self, *words: str, code: int = 0) -> str:
        """Run a command in the project, and return its output."""
        out = StringIO()
        with chdir(self.folder), redirect_stdout(out), pytest.raises(SystemExit) as ended:
            main(words)
        assert (ended.value.code or 0) == code, out.getvalue()
        return out.getvalue()


@pytest.fixture(scope="module", params=LOGS, ids=lambda path: str(path.relative_to(HERE)))
def remade(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Remade]:
    """Return a golden log with all that the code at hand makes of it."""
    golden, folder = request.param, tmp_path_factory.mktemp("golden")
    shutil.copytree(golden, folder, ignore=shutil.ignore_patterns("root"), dirs_exist_ok=True)
    for part in PARTS:
        (folder / part).symlink_to(ROOT / part)
    with pytest.MonkeyPatch.context() as patch, chdir(folder):
        patch.setenv("NEARFREE_CACHE", str(folder / "no" / "cache"))
        remake(golden / "root", Path("config"), Path("results"))
        yield Remade(golden, folder)


def test_everything_is_made_again(remade: Remade) -> None:
    """Tables are equal cell by cell, and so are figures' data, report's numbers and answers."""
    old = content(remade.golden / "root")
    new = content(remade.folder / "results") | answers(remade.run)
    found = list(islice(differences(old, new), SHOWN))
    assert found == [], "\n".join(map(str, found))


def test_commands_go_on_with_the_log(remade: Remade, tmp_path: Path) -> None:
    """What old code sealed verifies, is audited, crated, recovered and retracted."""
    root = remade.copy(tmp_path)
    assert "0 damaged" in root.run("verify")
    assert "; 0 findings" in root.run("audit", "--all")
    root.run("crate", "crate")
    assert "0 damaged" in root.run("crate", "--verify", "crate")
    for line in root.run("log", "recover").splitlines():
        if line.startswith("cpu/"):
            assert "sealed" in root.run("log", "recover", line.partition(":")[0])
    take = "public/near_free_parallelism/1-02f8ec6e"
    assert "retracts" in root.run("log", "retract", take, "--reason", "a test")
    assert "0 damaged" in root.run("verify")


def test_ledgers_are_put_back(remade: Remade, tmp_path: Path) -> None:
    """The results of old ledgers come back by other code, and what changed between them is told."""
    root = remade.copy(tmp_path)
    last = len(list((remade.folder / "results/ledger/local").iterdir()))
    root.run("report", "--as-of", str(last), "--other-code")
    path = root.folder / f"results/as_of/{last:06}/results"
    old = {place: each for place, each in content(remade.golden / "root").items()
           if not place.startswith(("answers/", "report/runs"))}  # fmt: skip
    assert [*islice(differences(old, content(path)), SHOWN)] == []
    told = root.run("diff", "1", str(last))
    assert ("no number differs" in told) == (last == 1)


def test_golden_logs_hold_every_event_and_table() -> None:
    """Each event type and each table with rows is in some golden log: a new one needs a new log."""
    lines = [path.read_text() for path in HERE.glob("*/*/root/events/*/*/*.jsonl")]
    missing = [p.type_name for p in PAYLOADS if not any(p.type_name in each for each in lines)]
    assert missing == [], "write the golden logs of this version: tests/golden/make.py"
    filled = {path.stem for path in HERE.glob("*/*/root/tables/*/*.parquet")
              if pl.read_parquet(path).height}  # fmt: skip
    assert TABLES.keys() - filled == set()


@pytest.mark.parametrize("log", LOGS, ids=lambda path: str(path.relative_to(HERE)))
def test_golden_logs_are_of_no_machine(log: Path) -> None:
    """No golden file holds an absolute path, a home folder or a URL."""
    texts = [path.read_text() for path in log.rglob("*.json*") if path.suffix != ".gz"]
    texts.append(str(derived(log / "root")))
    for text in texts:
        assert "://" not in text
        assert not any(each in text for each in ('"/home', '"/root', '"/tmp', '"/work', "~/"))


def test_a_difference_is_named() -> None:
    """A changed cell, a missing row and a changed number are told with their place and values."""
    old = content(LOGS[0] / "root")
    place = "tables/cpu/boundaries"
    rows = dict(old[place]["rows"])
    first, second, *_ = rows
    rows[first] = rows[first] | {"n_max": 12345, "why": "reworded"}
    del rows[second]
    page = {"report/page/answer": ["1"]}
    found = list(differences(old, old | {place: old[place] | {"rows": rows}} | page))
    assert [(each.place, each.path) for each in found] == [
        ("report/page/answer", ()),
        (place, ("rows", first, "n_max")),
        (place, ("rows", second)),
    ]
    assert f"{place}: rows {first} n_max (platform=cpu, " in str(found[1])
    assert str(found[1]).endswith("-> 12345")
