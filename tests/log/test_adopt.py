"""Adoption: sealed takes enter git's index, with a line in the tracked ledger."""

import subprocess
from pathlib import Path

import pytest
from conftest import make_plan, write_take
from msgspec.structs import replace
from nearfree.errors import DamageError, EvidenceError, LogError
from nearfree.log.adopt import adopt, adopted_takes, retire
from nearfree.log.document import read_document, render
from nearfree.log.evidence import read_take
from nearfree.log.ledger import Ledger, read_chain, seals_root, write_ledger
from nearfree.log.line import sha256
from nearfree.log.names import Layout, TakeName
from nearfree.log.retract import retract
from nearfree.log.verify import verify

from log.faults import damage, flip


def git(*args: str) -> str:
    """Run git in the folder of the test."""
    return subprocess.run(["git", *args], check=True, capture_output=True, text=True).stdout


@pytest.fixture
def config(tmp_path: Path) -> Path:
    """Write a config folder."""
    folder = tmp_path / "config"
    folder.mkdir()
    (folder / "config.yaml").write_text("here: [cpu]\n")
    return folder


@pytest.fixture
def layout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Layout:
    """Make a repository that ignores its results, with three takes of two scopes."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", "/dev/null")
    git("init", "--quiet")
    (tmp_path / ".gitignore").write_text("results/\n")
    layout = Layout(Path("results"))
    for scope, stream in (("cpu", "dense"), ("cpu", "moe"), ("h20", "dense")):
        write_take(layout, scope=scope, stream=stream)
    return layout


def tracked() -> set[str]:
    """Return the paths in git's index."""
    return set(git("ls-files").split())


def files(layout: Layout, *takes: TakeName) -> set[str]:
    """Return the seal and the segments of takes."""
    return {
        str(path)
        for take in takes
        for path in (layout.seal(take), *(layout.segment(take, a) for a in layout.attempts(take)))
    }


def test_a_scope_enters_the_index(layout: Layout, config: Path) -> None:
    """All takes of a scope and a ledger are added although git ignores their folder."""
    mine = layout.takes("cpu")
    assert adopted_takes(layout) == set()
    assert adopt(layout, config, "cpu") == mine
    assert tracked() == files(layout, *mine) | {"results/ledger/000001.json"}
    assert adopted_takes(layout) == set(mine)
    (ledger,) = read_chain(layout.ledgers)
    assert set(ledger.seals) == {str(take) for take in mine}
    assert damage(layout.root) == []


def test_a_stream_can_be_adopted_alone(layout: Layout, config: Path) -> None:
    """Later adoptions add to what is adopted, each with a ledger of its own."""
    assert [t.stream for t in adopt(layout, config, "cpu", "moe")] == ["moe"]
    assert [t.stream for t in adopt(layout, config, "cpu")] == ["dense"]
    first, second = read_chain(layout.ledgers)
    assert len(first.seals) == 1
    assert len(second.seals) == 2
    assert tracked() >= files(layout, *layout.takes("cpu"))


def test_a_scope_s_retractions_are_adopted_once(layout: Layout, config: Path) -> None:
    """A whole scope holds its retractions already: no take of it is told or added twice."""
    retract(layout, str(layout.takes("cpu", "dense")[0]), "wrong clock")
    assert adopt(layout, config, "cpu") == layout.takes("cpu")


def test_a_stream_is_adopted_with_what_retracts_it(layout: Layout, config: Path) -> None:
    """Else a clone would believe takes that their own machine does not."""
    (dense, *_) = layout.takes("cpu", "dense")
    retraction = retract(layout, str(dense), "wrong clock").name
    assert adopt(layout, config, "cpu", "dense") == [dense, retraction]
    assert files(layout, retraction) < tracked()


def test_retractions_alone_are_no_stream(layout: Layout, config: Path) -> None:
    """A stream without a sealed take is refused, though its scope has retractions."""
    retract(layout, str(layout.takes("cpu", "dense")[0]), "wrong clock")
    with pytest.raises(EvidenceError, match="cpu/gemm holds no sealed take"):
        adopt(layout, config, "cpu", "gemm")
    assert tracked() == set()


def test_other_tracked_files_are_no_takes(layout: Layout, config: Path) -> None:
    """Of tracked files below the events only seals under a take's name are adopted takes.

    A segment whose seal is not tracked is none of them.
    """
    adopt(layout, config, "cpu", "moe")
    git("add", "-f", str(layout.segment(layout.takes("cpu", "dense")[0], 1)))
    for name in ("cpu/moe/notes.txt", "cpu/moe/1.seal.json", "notes.seal.json"):
        (layout.events / name).write_text("")
        git("add", "-f", str(layout.events / name))
    assert adopted_takes(layout) == set(layout.takes("cpu", "moe"))


def test_nothing_is_retired_from_a_damaged_log(layout: Layout, config: Path) -> None:
    """A damaged adopted take stops a retirement before a ledger is written or a file removed."""
    dense, moe = adopt(layout, config, "cpu")
    path = layout.segment(moe, 1)
    path.write_bytes(flip(path.read_bytes(), 1000))
    before = tracked()
    with pytest.raises(DamageError, match=str(moe)):
        retire(layout, config, [dense], used_events=frozenset())
    assert tracked() == before
    assert layout.seal(dense).exists()
    assert len(read_chain(layout.ledgers)) == 1


def test_what_is_adopted_is_not_adopted_again(layout: Layout, config: Path) -> None:
    """A second adoption without a new take adds nothing and writes no ledger."""
    adopt(layout, config, "cpu")
    before = tracked()
    assert adopt(layout, config, "cpu") == []
    assert tracked() == before
    assert len(read_chain(layout.ledgers)) == 1


def test_every_attempt_of_a_take_is_added(layout: Layout, config: Path) -> None:
    """A take of several attempts enters the index with all of its segments."""
    with pytest.raises(ZeroDivisionError):
        write_take(layout, scope="h200", work=lambda _: 1 / 0)
    name = write_take(layout, scope="h200").name
    assert layout.attempts(name) == [1, 2]
    assert adopt(layout, config, "h200") == [name]
    assert files(layout, name) < tracked()


@pytest.mark.parametrize("which", [0, 1])
def test_a_damaged_take_is_refused(layout: Layout, config: Path, which: int) -> None:
    """If one of the takes is damaged, nothing enters the index, whichever of them it is."""
    path = layout.segment(layout.takes("cpu")[which], 1)
    path.write_bytes(flip(path.read_bytes(), 1000))
    with pytest.raises(DamageError):
        adopt(layout, config, "cpu")
    assert tracked() == set()
    assert read_chain(layout.ledgers) == []


def test_damage_to_an_adopted_take_enters_no_ledger(layout: Layout, config: Path) -> None:
    """A damaged seal that was adopted earlier is refused: a new ledger would name it for ever."""
    (dense,) = adopt(layout, config, "cpu", "dense")
    seal = layout.seal(dense)
    sound = seal.read_bytes()
    seal.write_bytes(flip(sound, 1000))
    with pytest.raises(DamageError):
        adopt(layout, config, "cpu", "moe")
    seal.write_bytes(sound)
    adopt(layout, config, "cpu", "moe")
    assert damage(layout.root) == []


@pytest.mark.parametrize(("scope", "stream"), [("h200", None), ("cpu", "attention")])
def test_nothing_sealed_is_refused(
    layout: Layout, config: Path, scope: str, stream: str | None
) -> None:
    """Without a sealed take nothing is adopted, and the error names the requested scope."""
    with pytest.raises(EvidenceError, match=f"{scope}{'/' + stream if stream else ''} holds no"):
        adopt(layout, config, scope, stream)
    assert tracked() == set()


@pytest.mark.parametrize(("scope", "stream"), [("*", None), ("../cpu", None), ("cpu", "*")])
def test_a_pattern_names_no_scope(
    layout: Layout, config: Path, scope: str, stream: str | None
) -> None:
    """A scope or stream that is no plain name is refused, a pattern that matches all included."""
    with pytest.raises(LogError, match="cannot name a scope or stream"):
        adopt(layout, config, scope, stream)
    assert tracked() == set()


def test_outside_of_a_repository_is_a_clean_error(layout: Layout, config: Path) -> None:
    """Without a repository git's own words come with the advice to adopt inside a clone."""
    Path(".git").rename("gone")
    with pytest.raises(LogError, match=r"git ls-files failed: .*not a git repository") as caught:
        adopt(layout, config, "cpu")
    assert "inside a clone" in caught.value.remedy


def test_a_machine_without_git_is_a_clean_error(
    layout: Layout, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a git command the error names git."""
    monkeypatch.setenv("PATH", "")
    with pytest.raises(LogError, match=r"git ls-files failed: .*No such file"):
        adopt(layout, config, "cpu")


def test_simulated_takes_are_refused(layout: Layout, config: Path) -> None:
    """The repository keeps what was measured: nothing of a scope with a simulated take is added."""
    write_take(layout, scope="h20", stream="moe", plan=replace(make_plan(), curves="0" * 64))
    for stream in (None, "moe"):
        with pytest.raises(EvidenceError, match=r"h20/moe/1-\w+ is simulated"):
            adopt(layout, config, "h20", stream)
    assert tracked() == set()
    assert adopt(layout, config, "cpu")


def test_a_retired_take_leaves_the_repository(layout: Layout, config: Path) -> None:
    """A retired take's files leave disk and index; a ledger keeps the digest of its seal.

    The remaining files verify, and earlier ledgers still name the take.
    """
    dense, moe = adopt(layout, config, "cpu")
    adopt(layout, config, "h20")
    receipt = layout.receipt(dense)
    digest = sha256(layout.seal(dense).read_bytes())
    ours = files(layout, dense)
    assert retire(layout, config, [dense, dense], used_events=frozenset()) == [dense]
    assert not ours & tracked()
    assert "results/ledger/000003.json" in tracked()
    assert not any(Path(name).exists() for name in ours)
    assert not receipt.exists()
    assert adopted_takes(layout) == {moe, *layout.takes("h20")}
    first, second, third = read_chain(layout.ledgers)
    assert third.retired == {str(dense): digest}
    assert str(dense) in first.seals.keys() & second.seals.keys()
    assert {*map(str, adopted_takes(layout))} == third.seals.keys()
    assert damage(layout.root) == []
    messages = [finding.message for finding in verify(layout.root).findings]
    assert messages == [f"lists {dense} as the first; a later one retired it"]
    assert adopt(layout, config, "cpu") == []
    assert len(read_chain(layout.ledgers)) == 3


def test_this_machine_s_ledgers_follow(layout: Layout, config: Path) -> None:
    """A local ledger that lists a retired take verifies; the next ledger records the retirement."""
    (dense,) = adopt(layout, config, "cpu", "dense")
    local = layout.ledgers / "local"
    write_ledger(layout, local, config)
    retire(layout, config, [dense], used_events=frozenset())
    assert damage(layout.root) == []
    write_ledger(layout, local, config)
    gone = read_chain(local)[-1].retired
    assert gone == {str(dense): read_chain(local)[0].seals[str(dense)]}
    for path in layout.ledgers.glob("*.json"):
        path.unlink()
    assert damage(layout.root) == []


def test_a_retired_take_that_came_back_is_no_news(layout: Layout, config: Path) -> None:
    """A notice says that a listed take was retired only while its seal is gone."""
    (dense,) = adopt(layout, config, "cpu", "dense")
    kept = {path: Path(path).read_bytes() for path in files(layout, dense)}
    retire(layout, config, [dense], used_events=frozenset())
    (notice,) = verify(layout.root).findings
    assert notice.notice
    assert notice.path == "ledger/000001.json"
    for path, raw in kept.items():
        Path(path).parent.mkdir(exist_ok=True)
        Path(path).write_bytes(raw)
    assert verify(layout.root).findings == ()


def test_another_seal_of_a_retired_name_is_damage(layout: Layout, config: Path) -> None:
    """A ledger that lists another seal under the name of a retired take misses that seal."""
    (dense,) = adopt(layout, config, "cpu", "dense")
    path = write_ledger(layout, layout.ledgers / "local", config)
    ledger = read_document(path, Ledger)
    seals = {**ledger.seals, str(dense): "0" * 64}
    path.write_bytes(render(replace(ledger, seals=seals, root=seals_root(seals))))
    retire(layout, config, [dense], used_events=frozenset())
    (finding,) = damage(layout.root)
    assert finding.path == "ledger/local/000001.json"
    assert f"the seal of {dense} is gone that this ledger names" in finding.message


def test_what_is_gone_without_a_word_is_damage(layout: Layout, config: Path) -> None:
    """A missing take is damage unless a ledger retired exactly that seal."""
    dense, moe = adopt(layout, config, "cpu")
    retire(layout, config, [dense], used_events=frozenset())
    layout.seal(moe).unlink()
    assert [str(moe) in finding.message for finding in damage(layout.root)].count(True) == 3


def test_what_is_read_or_not_adopted_stays(layout: Layout, config: Path) -> None:
    """A take whose events are read, or that no ledger lists, cannot be retired."""
    dense, moe = adopt(layout, config, "cpu")
    (other,) = layout.takes("h20")
    (event, *_) = read_take(layout, moe).events
    for take, match in ((moe, f"{moe} is still read: {moe}"), (other, "is not adopted")):
        with pytest.raises(EvidenceError, match=match):
            retire(layout, config, [dense, take], used_events={event.event_id})
    assert files(layout, dense, moe) <= tracked()
    assert len(read_chain(layout.ledgers)) == 1
