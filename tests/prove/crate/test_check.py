"""`crate --verify` finds any changed byte, and hostile metadata end in one line."""

import os
import random
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import json, structs
from nearfree.cli import main
from nearfree.errors import DamageError
from nearfree.log.document import Manifest, manifest_path, read_document, render
from nearfree.log.names import Layout
from nearfree.prove.crate import check, graph
from nearfree.prove.crate.check import check_crate
from nearfree.prove.crate.describe import describe
from nearfree.prove.crate.graph import METADATA, crate_layout
from once import commit
from prove.crate.conftest import PROJECT

pytestmark = pytest.mark.slow

FLIPS = int(os.environ.get("NEARFREE_FLIPS", "15"))
"""How many bits a commit draws."""

Call = Callable[..., tuple[int, str, str]]


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Call:
    """Return a function that runs `nearfree crate` in the project's folder."""
    monkeypatch.chdir(PROJECT)

    def run(*argv: object) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as ended:
            main(["crate", *map(str, argv)])
        out, err = capsys.readouterr()
        return int(ended.value.code or 0), out, err

    return run


def named(crate: Path, path: Path) -> bool:
    """Return whether a file's damage is reported by its name."""
    try:
        findings = check_crate(crate)
    except DamageError as error:
        return str(path) in str(error)
    # A size or digest that the metadata tell wrongly is told by the file that it is of.
    name = path.relative_to(crate).as_posix()
    return bool(findings) if name == METADATA else name in {finding.path for finding in findings}


def test_any_flipped_bit_is_named(crate: Path) -> None:
    """One flipped bit of any file, metadata included, is reported by the file's name."""
    rolled = random.Random(commit())  # noqa: S311 (the same choices for one commit)
    files = [path for path in sorted(crate.rglob("*")) if path.is_file()]
    unnamed = []
    for number in range(FLIPS):
        path = crate / METADATA if number % 5 == 0 else rolled.choice(files)
        raw = path.read_bytes()
        bit = rolled.randrange(8 * len(raw))
        changed = bytearray(raw)
        changed[bit // 8] ^= 1 << bit % 8
        path.write_bytes(changed)
        if not named(crate, path):
            unnamed.append((path.name, bit))
        path.write_bytes(raw)
    assert unnamed == []
    assert check_crate(crate) == []


def one_line(crate: Path, call: Call) -> str:
    """Return the one line with which `--verify` ends, with exit code 2 and no traceback."""
    code, out, err = call("--verify", crate)
    assert (code, out) == (2, "")
    assert err.startswith("nearfree: error: ")
    assert len(err.splitlines()) == 1
    return err


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"no",
        b"null",
        b"[]",
        b'{"@context": [], "@graph": []}',
        b'{"@context": "https://w3id.org/ro/crate/1.1/context"}',
        b'{"@context": [1], "@graph": {}}',
        b'{"@context": [1], "@graph": [1]}',
        b'{"@context": [1], "@graph": [{}]}',
        b'{"@context": [1], "@graph": [{"@id": 7, "@type": "File"}]}',
        b'{"@context": [1], "@graph": [{"@id": "a", "@type": [{}]}]}',
        b'{"@context": [1], "@graph": [{"@id": "\\ud800", "@type": "File"}]}',
        b'{"@context": [1], "@graph": [{"@id": "\xff", "@type": "File"}]}',
        b'{"@context": [1], "@graph": [' + b"[" * 100_000,
        b'{"@context": [1], "@graph": [{"a":' + b'{"a":' * 100_000,
        b'{"@context": ' + b"[" * 3000 + b"]" * 3000 + b', "@graph": []}',
        b'{"@context": [1], "@graph": [], "more": 1}',
    ],
)
def test_hostile_metadata_end_in_one_line(crate: Path, call: Call, raw: bytes) -> None:
    """Metadata of any wrong form or depth are refused in one line."""
    (crate / METADATA).write_bytes(raw)
    assert METADATA in one_line(crate, call)


def test_huge_metadata_are_not_read(crate: Path, call: Call) -> None:
    """Metadata far larger than any crate's are refused by their size."""
    os.truncate(crate / METADATA, 10**12)
    assert "bytes" in one_line(crate, call)


def test_no_crate_is_told_in_one_line(crate: Path, tmp_path: Path, call: Call) -> None:
    """A folder that is missing, or whose metadata are missing or a link, is refused."""
    (crate / METADATA).rename(tmp_path / METADATA)
    assert "is not there" in one_line(crate, call)
    assert "is not there" in one_line(tmp_path / "nowhere", call)
    (crate / METADATA).symlink_to(tmp_path / METADATA)
    assert "is not there" in one_line(crate, call)


IDS = st.one_of(
    st.text(max_size=20),
    st.sampled_from(["/etc/passwd", "file:///etc/passwd", "..", "%2e%2e/x", "C:\\x", "./", "\0"]),
)
VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), IDS),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=5), inner, max_size=3)
    ),
    max_leaves=8,
)


@settings(
    max_examples=FLIPS, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    entity=st.fixed_dictionaries(
        {"@id": IDS, "@type": st.sampled_from(["File", "Dataset", ["File", "HowTo"]])},
        optional={"contentSize": VALUES, "sha256": VALUES, "result": VALUES},
    )
)
def test_any_added_entity_is_found(crate: Path, entity: dict[str, Any]) -> None:
    """An added entity is damage, whatever its ids and values are."""
    sound = (crate / METADATA).read_bytes()
    document = json.decode(sound)
    document["@graph"].append(entity)
    (crate / METADATA).write_bytes(json.encode(document))
    findings = check_crate(crate)
    (crate / METADATA).write_bytes(sound)
    assert findings


def test_a_special_file_is_not_opened(crate: Path) -> None:
    """A pipe in a crate is reported, and not opened."""
    os.mkfifo(crate / "config" / "pipe")
    messages = {finding.path: finding.message for finding in check_crate(crate)}
    assert messages["config/pipe"] == "is a link or no plain file"


def forge(crate: Path) -> None:
    """Describe the crate's files as they are now, as a forger would."""
    document = json.decode((crate / METADATA).read_bytes())
    files = graph.read_contents(crate)
    entities = [entity for entity in document["@graph"] if entity["@type"] != "File"]
    entities += [
        {"@id": name, "@type": "File", "contentSize": str(content.size), "sha256": content.sha256}
        for name, content in files.items()
    ]
    (crate / METADATA).write_bytes(json.encode(document | {"@graph": entities}))


def test_a_table_that_is_described_as_it_was_changed_is_found(crate: Path) -> None:
    """A changed table is found by its manifest, even if the metadata fit it."""
    table = crate / "results/tables/cpu/latency.parquet"
    table.write_bytes(table.read_bytes()[:-1] + b"!")
    forge(crate)
    messages = {finding.path: finding.message for finding in check_crate(crate)}
    assert "is not what its manifest says" in messages["results/tables/cpu/latency.parquet"]


def test_a_crate_without_its_ledger_is_told(crate: Path) -> None:
    """A crate without a ledger is damaged, even if its metadata fit."""
    shutil.rmtree(crate / "results/ledger")
    forge(crate)
    messages = {finding.path: finding.message for finding in check_crate(crate)}
    assert messages == {"results/ledger": "holds no ledger"}


def test_no_link_is_followed(crate: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If a crate holds a link, the log is not read."""
    segment = next((crate / "results/events/cpu/dense_ffn").glob("*.jsonl"))
    segment.symlink_to(segment.rename(crate.parent / "elsewhere"))
    monkeypatch.setattr(check, "verify", lambda _: pytest.fail("the log is read"))
    name = segment.relative_to(crate).as_posix()
    findings = [(finding.path, finding.message) for finding in check_crate(crate)]
    assert findings == [(name, "is a link or no plain file"), (name, "is not there")]


def test_a_name_that_is_no_text_is_shown(crate: Path, call: Call) -> None:
    """A file whose name is not UTF-8 is named, escaped."""
    os.close(os.open(os.fsencode(crate / "config") + b"/\xff\xfe", os.O_CREAT))
    code, out, _ = call("--verify", crate)
    assert code == 2
    assert "config/%FF%FE is not described" in out


def test_the_command_writes_and_verifies(made: Layout, tmp_path: Path, call: Call) -> None:
    """The command writes a crate and verifies it, and names a file changed afterwards."""
    out = tmp_path / "out"
    code, output, err = call(out, "--results", made.root, "--ledger", 1)
    assert (code, err) == (0, "")
    assert output.splitlines()[-1].startswith(f"{out}: ledger 1, 3 takes, ")
    assert call("--verify", out) == (0, f"{out}: 0 damaged\n", "")
    (out / "more.txt").write_text("more")
    code, output, err = call("--verify", out)
    assert (code, err) == (2, "")
    assert f"DAMAGE: {out}/more.txt is not described\n" in output
    code, output, err = call(out, "--results", made.root)
    assert (code, output) == (2, "")
    assert "is not empty" in err


def test_an_empty_folder_is_found(crate: Path) -> None:
    """An empty folder is reported, since no entity describes it."""
    (crate / "results" / "tables" / "more" / "empty").mkdir(parents=True)
    messages = {finding.path: finding.message for finding in check_crate(crate)}
    assert messages == {"results/tables/more/empty": "is a link or no plain file"}


@pytest.mark.parametrize("below", ["results/tables", "results/as_of/000001/config", "config"])
def test_a_file_however_deep_is_found(crate: Path, call: Call, below: str) -> None:
    """A file below more folders than Python's recursion limit is reported."""
    (crate / below).mkdir(parents=True, exist_ok=True)
    path = str(crate / below)
    try:
        for _ in range(1100):
            path += "/d"
            os.mkdir(path)  # noqa: PTH102 (a Path of so many parts takes as long to make)
        (Path(path) / "deep.yaml").touch()
        code, out, err = call("--verify", crate)
    finally:
        subprocess.run(["rm", "-rf", crate / below], check=True)  # shutil's would not go so deep
    assert (code, err) == (2, "")
    assert "deep.yaml is not described" in out


@pytest.mark.parametrize(
    "name",
    [
        "results/events/cpu/dense/9-0123abcd.1.jsonl",
        "results/events/cpu/dense/9-0123abcd.seal.json",
        "results/ledger/local/000002.json",
        "results/state/cpu/hardware/{take}.json",
        "results/tables/cpu/latency.parquet",
        "results/tables/cpu/latency.parquet.manifest.json",
    ],
)
def test_a_file_that_memory_would_not_hold_is_refused(
    crate: Path, call: Call, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """A file larger than any that a crate may hold is reported and not read."""
    seal = next((crate / "results/events/cpu/hardware").glob("*.seal.json"))
    path = crate / name.format(take=seal.name.removesuffix(".seal.json"))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    os.truncate(path, 10**12)
    monkeypatch.setattr(graph, "read_contents", lambda _: {})  # which reads it piece by piece
    monkeypatch.setattr(check, "read_contents", lambda _: {})
    code, out, err = call("--verify", crate)
    assert code == 2
    assert re.search("would take 1,000,000,000,000 bytes|is not a copy of its seal", out + err)


def test_rules_of_other_code_are_told(
    root: Layout, tmp_path: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the code changed since the ledger, a notice says that the rules are newer."""
    for name in ("tables", "figures"):
        shutil.rmtree(root.root / name)
    monkeypatch.setattr("nearfree.prove.audit.ledgers.package_digest", lambda: "0" * 16)
    code, output, _ = call(tmp_path / "out", "--results", root.root)
    assert code == 0
    assert output.startswith("notice: rules and Snakefile differ from the ledger's: 'code' was")


def test_an_empty_name_of_a_ledger_is_a_mistake(made: Layout, tmp_path: Path, call: Call) -> None:
    """An empty ledger name, as of an unset shell variable, does not mean the newest ledger."""
    code, out, err = call(tmp_path / "out", "--results", made.root, "--ledger", "")
    assert (code, out) == (2, "")
    assert "--ledger is empty" in err


def test_hostile_names_of_files_stay_in_their_line(crate: Path, call: Call) -> None:
    """Line breaks and control characters in a file's name are escaped."""
    (crate / "x\n\x1b[2Jy: 0 damaged").touch()
    code, out, _ = call("--verify", crate)
    assert code == 2
    assert "\x1b" not in out
    assert len(out.splitlines()) == 2


def test_numbers_of_another_config_are_found(crate: Path) -> None:
    """A table made under another datasheet than the ledger's is found."""
    path = manifest_path(crate_layout(crate).table("cpu", "platforms"))
    manifest = read_document(path, Manifest)
    other = {**manifest.made_from, "config/platforms.yaml:cpu": "0" * 12}
    path.write_bytes(render(structs.replace(manifest, made_from=other, hash="")))
    (crate / METADATA).write_bytes(describe(crate))
    (finding,) = check_crate(crate)
    assert "made from other config/platforms.yaml:cpu than ledger 1" in finding.message
