"""The commands `rules` and `granularity`, over a log with one made-up release and no network."""

from pathlib import Path

import pytest
from msgspec import json
from nearfree.cli import rule_actions
from nearfree.log.names import Layout
from nearfree.sources import classes, history, record
from nearfree.sources.backends.model_classes import Classes
from nearfree.sources.fetching.cache import Cache
from nearfree.sources.history import Lock, read_lock, write_lock
from sources.moe_release import PATH, made_release

from cli.conftest import Call
from cli.test_mistakes import one_message

LAYER = ["--experts", "256", "--top-k", "8", "--d-ff", "1024", "--d-model", "4096"]
H20 = ["--device", "NVIDIA H20"]


@pytest.fixture
def recorded(project: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put the made-up release on record, with no network or cache."""
    monkeypatch.setattr(record, "extract", lambda *_, **__: made_release())
    record.record_extraction(Layout(project / "results"), "vllm", "1.0", cache=Cache(project / "c"))
    monkeypatch.undo()
    monkeypatch.chdir(project)
    monkeypatch.setenv("NEARFREE_CACHE", str(project / "cache"))
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    return project


def test_granularity_answers_from_the_log(recorded: Path, call: Call) -> None:
    """JSON holds the release, the paths and the intervals, each with its evidence."""
    code, out, err = call(
        "granularity", "vllm==1.0", *LAYER, *H20, "--tokens", "1:50", "--format", "json"
    )
    assert (code, err) == (0, "")
    document = json.decode(out)
    assert (document["package"], document["version"]) == ("vllm", "1.0")
    assert [(p["from"], p["to"], p["path"]) for p in document["kernel_path"]] == [
        (1, 8, "naive"),
        (9, 50, "aligned"),
    ]
    first_interval, second_interval = document["intervals"]
    assert (
        first_interval["from"],
        first_interval["to"],
        first_interval["value"],
        first_interval["source"],
    ) == (1, 40, 16, "fallback")
    assert (second_interval["from"], second_interval["to"], second_interval["value"]) == (
        41,
        50,
        32,
    )
    assert first_interval["file"] == PATH
    assert len(first_interval["lines"]) == 2
    assert first_interval["sha256"] == "b" * 64
    assert document["artefact_sha256"] == "a" * 64


def test_granularity_prints_a_table(recorded: Path, call: Call) -> None:
    """The table has where each size holds, its source, and its file and line."""
    out = call("granularity", "vllm==1.0", *LAYER, *H20, "--tokens", "1:50")[1]
    assert "path naive" in out
    assert f"fallback  {PATH}:" in out


def test_a_platform_s_name_opens_the_files_of_its_device(recorded: Path, call: Call) -> None:
    """Tuned files are found by the driver's name, whatever the device is called."""
    command = ("granularity", "vllm==1.0", *LAYER, "--d-ff", "512", "--format", "json", "--device")
    by_driver, by_name, by_alias = (call(*command, name) for name in (H20[1], "h20", "h20_sxm"))
    assert json.decode(by_driver[1])["intervals"][0]["source"] == "tuned"
    assert by_name == by_alias == by_driver


def test_a_device_that_is_not_known_is_noted(recorded: Path, call: Call) -> None:
    """An answer without the device's capability and SMs has a note."""
    command = ("granularity", "vllm==1.0", *LAYER, "--device")
    note = "note: 'NVIDIA H2OO' is not a device of config/platforms.yaml"
    assert note in call(*command, "NVIDIA H2OO")[1]
    assert "note: " not in call(*command, "NVIDIA H20")[1]


def test_a_kernel_without_a_build_for_the_device_has_no_tile(
    call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FlashAttention 3 exists for Hopper alone in vLLM, and in FlashInfer where it is requested."""
    monkeypatch.chdir(Path(__file__).parents[2])
    heads = ("--heads", "32", "--kv-heads", "8", "--head-dim", "128", "--page-size", "16")
    for release in (("vllm-fa3==0.33.0",), ("flashinfer-python==0.6.13", "--backend", "fa3")):
        code, _, err = call("granularity", *release, *heads, "--device", "a100")
        assert (code, "has no kernels for compute capability 80" in err) == (2, True)
        assert call("granularity", *release, *heads, "--device", "h100")[0] == 0


def test_an_override_and_an_own_folder(recorded: Path, call: Call) -> None:
    """Both go before the release's own rules."""
    (recorded / "own").mkdir()
    name = "E=256,N=1024,device_name=NVIDIA_H20.json"
    (recorded / "own" / name).write_text('{"1": {"BLOCK_SIZE_M": 80}}')
    for option, value in (("--override", "48"), ("--tuned-folder", "own")):
        command = ("granularity", "vllm==1.0", *LAYER, *H20, option, value, "--format", "json")
        intervals = json.decode(call(*command)[1])["intervals"]
        assert [interval["source"] for interval in intervals] == ["override"]
        assert intervals[0]["value"] in (48, 80)


def test_a_tuned_file_that_is_too_large_is_refused(recorded: Path, call: Call) -> None:
    """A file of your own that no release could hold is named, and not read into memory."""
    (recorded / "own").mkdir()
    path = recorded / "own" / "E=256,N=1024,device_name=NVIDIA_H20.json"
    with path.open("wb") as file:
        file.truncate(2**25)
    answer = call("granularity", "vllm==1.0", *LAYER, *H20, "--tuned-folder", "own")
    one_message(answer, f"own/{path.name} would take 33,554,432 bytes")


def test_rules_are_shown_with_file_and_line(recorded: Path, call: Call) -> None:
    """Each branch is printed with its condition, its value and its line."""
    out = call("rules", "show", "vllm==1.0")[1]
    assert (
        f"16  if not (dtype == 'fp8_w8a8' and block_shape is not None) and M <= 40   {PATH}:" in out
    )
    document = json.decode(call("rules", "show", "vllm==1.0", "--format", "json")[1])
    assert {rule["rule"] for rule in document["rules"]} >= {"block_size_m", "path", "tuned_name"}
    assert document["sources"][0]["artefact_sha256"] == "a" * 64


def test_a_release_equals_itself(recorded: Path, call: Call) -> None:
    """A comparison of a release with itself finds no difference."""
    out = call("rules", "diff", "vllm", "1.0", "1.0")[1]
    assert out == "vllm 1.0 and 1.0 have the same rules\n"


def test_a_history_lists_changes_of_rules(
    recorded: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first release is printed in full, the others by their changes."""
    monkeypatch.setattr(history, "fetch", lambda *_, **__: None)
    monkeypatch.setattr(history, "extract", lambda *_, **__: made_release())
    rules = dict.fromkeys(("0.9", "1.0", "1.1"), made_release().meanings())
    write_lock(recorded / "config" / "rules.lock", Lock(rules={"vllm": rules}))
    code, out, err = call("rules", "history", "vllm", "--offline")
    assert (code, err) == (0, "")
    assert out.splitlines()[:-1] == [
        "0.9: the first one read",
        "1.0 to 1.1 (2 releases): the same rules",
    ]


def test_a_usual_group_of_scales_changes_nothing(recorded: Path, call: Call) -> None:
    """Weights alone have 0 rows a scale: their usual group, when named, changes nothing."""
    command = ("granularity", "vllm==1.0", *LAYER, *H20, "--dtype", "int4", "--tokens", "1:50")
    answer = call(*command, "--block-shape", "0,128")
    assert answer == call(*command)
    assert answer[0] == 0


def test_a_history_without_the_releases_leaves_the_lock(recorded: Path, call: Call) -> None:
    """Without network and cache nothing is read, and no entry of the lock is lost."""
    path = recorded / "config" / "rules.lock"
    before = read_lock(path)
    code, out, err = call("rules", "history", "vllm", "--offline", "--from", "0.33", "--lock")
    assert (code, err) == (0, "")
    assert out.splitlines()[0] == "0.33.0: refused: vllm 0.33.0 is not in the cache"
    assert read_lock(path) == before


def test_extracting_what_is_sealed_answers_the_same(recorded: Path, call: Call) -> None:
    """A sealed release is not fetched: there is no network here."""
    code, out, _ = call("rules", "extract", "vllm==1.0")
    assert code == 0
    assert "sealed, 19 events" in out
    assert "1 tuned files, 0 of them odd" in out
    assert "not in the lock" in out


MISTAKES = [
    ("rules show vllm", "vllm==0.20.2"),
    ("rules show torch==2.0", "'torch'"),
    ("rules show vllm==1.0.0.0.x", "1.0.0.0.x"),
    ("rules show vllm==2.0 --offline", "vllm 2.0 is not in the cache"),
    ("rules show vllm==2.0", "vllm"),
    ("rules extract ../x==1.0", "../x"),
    ("rules diff vllm 1.0 2.0 --offline", "vllm 2.0"),
    ("rules history torch", "'torch'"),
    ("rules history vllm", "vllm"),
    ("granularity vllm==1.0", "--experts, --top-k, --d-ff, --d-model"),
    ("granularity vllm==1.0 --api kvcache --experts 8 --top-k 2 --d-ff 8 --d-model 8", "kvcache"),
    ("granularity vllm==1.0 --experts 8 --top-k 9 --d-ff 8 --d-model 8", "top_k 9"),
    ("granularity vllm==1.0 --experts 256 --top-k 8 --d-ff 512 --d-model 8", "--device"),
    ("granularity vllm==1.0 --experts 8 --top-k 2 --d-ff 8 --d-model 8 --tuned-folder no", "no"),
    ("granularity vllm==1.0 --tokens 5:1", "5:1"),
    ("granularity vllm==1.0 --tokens 0:1", "--tokens: 0 is not"),
    ("granularity vllm==1.0 --block-shape x", "'x' is not a pair"),
    ("granularity vllm==1.0 --block-shape 128", "'128' is not a pair: write rows,columns"),
    ("granularity vllm==1.0 --block-shape x,128", "'x,128' is not a pair"),
    ("granularity vllm==1.0 --block-shape 128,0", "0 is not between 1"),
    (
        " ".join(["granularity vllm==1.0", *LAYER, "--device h20 --block-shape 0,64"]),
        "--block-shape 0,64 means groups; --dtype bf16 has none",
    ),
    (" ".join(["granularity vllm==1.0", *LAYER, "--device h20 --config nowhere"]), "nowhere"),
    ("granularity vllm==1.0 --heads 8 --causal --tokens 1:5", "--heads has no effect on vllm==1.0"),
    (
        "granularity flash-attn==1.0 --dtype fp8 --type q4_k --no-repack",
        "--dtype, --type, --no-repack have no effect on flash-attn==1.0, whose rules are of attent",
    ),
    ("granularity vllm-linear==1.0 --api modular --top-k 2", "--top-k, --api have no effect"),
    ("granularity llama_cpp==3.22.1 --sm 90 --no-causal", "--no-causal, --sm have no effect"),
    ("granularity vllm-graphs==0.33.0 --heads 32", "rules show vllm-graphs==0.33.0"),
    ("granularity sglang-graphs==0.5.23 --heads 32", "rules show sglang-graphs==0.5.23"),
]


@pytest.mark.parametrize(("line", "names"), MISTAKES)
def test_a_mistake_is_named(recorded: Path, call: Call, line: str, names: str) -> None:
    """Exit code 2, one message that names the thing, no traceback, and an untouched log."""
    before = sorted((recorded / "results").rglob("*"))
    code, out, err = call(*line.split())
    assert code == 2
    assert out == ""
    assert names in err
    assert "Traceback" not in err
    assert sorted((recorded / "results").rglob("*")) == before


def test_classes_are_listed_by_release_and_written_to_the_lock(
    recorded: Path, call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Releases that gained or lost a class are named; `--lock` writes the lock."""
    classes_by_release = {
        "0.9": Classes(frozenset("AB")),
        "1.0": Classes(frozenset("AB")),
        "1.1": Classes(frozenset("A"), frozenset("C")),
    }
    monkeypatch.setattr(rule_actions, "read_classes", lambda *_, **__: classes_by_release)
    write_lock(
        recorded / "config" / "rules.lock",
        Lock(rules={"vllm": {name: {} for name in classes_by_release}}),
    )
    command = ("rules", "classes", "vllm", "--offline")
    path = Path("config") / classes.LOCK
    first_answer, locking, last_answer = call(*command), call(*command, "--lock"), call(*command)
    lines = ["0.9: 2 classes", "1.1: + C, - B"]
    assert first_answer == (
        0,
        "\n".join([*lines, "3 releases read; different from the lock\n"]),
        "",
    )
    assert locking[1].splitlines()[-1].startswith("wrote ")
    assert last_answer == (0, "\n".join([*lines, "3 releases read; equal to the lock\n"]), "")
    assert classes.read_class_lock(recorded / path)["vllm"].releases_with("B") == ["0.9", "1.0"]


def test_classes_are_those_of_two_engines(recorded: Path, call: Call) -> None:
    """Another package has no classes, and a release that cannot be fetched is named."""
    assert "choose from" in call("rules", "classes", "xformers")[2]
    write_lock(recorded / "config" / "rules.lock", Lock(rules={"vllm": {"0.9": {}}}))
    code, _, err = call("rules", "classes", "vllm", "--offline")
    assert (code, "vllm 0.9 is not in the cache" in err) == (2, True)
