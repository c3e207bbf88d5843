"""Models by their Hugging Face ids: the real library against a hub on this machine."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import nearfree
import pytest

from hub.server import COMMIT, OLDER, Hub, serving

ROOT = Path(__file__).parents[2]
CONFIG = (ROOT / "config" / "models" / "qwen3_8b.json").read_bytes()
QUANTISED = json.dumps({"quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": None}})
ASKED = {"config.json", "hf_quant_config.json", "quantize_config.json", "quant_config.json"}
ID = "Qwen/Qwen3-8B"
OFFLINE = {"HF_HUB_OFFLINE": "1"}
Ask = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def hub() -> Iterator[Hub]:
    """Serve models beside code and weights, and files that no model has."""
    beside = {"model.safetensors": b"weights", "modeling.py": b"raise SystemExit", "x.gguf": b"x"}
    repositories = {
        ID: {"config.json": CONFIG, **beside},
        "nvidia/quantised": {"config.json": CONFIG, "hf_quant_config.json": QUANTISED.encode()},
        "a/large": {"config.json": b'{"a": "' + b"x" * 50_000_000 + b'"}'},
        "a/page": {"config.json": b"<html></html>"},
        "a/bare": beside,
        "a/gated": {"config.json": CONFIG},
    }
    with serving(repositories) as served:
        served.gated.add("a/gated")
        served.moved["Qwen/old"] = ID
        yield served


@pytest.fixture
def ask(hub: Hub, tmp_path: Path) -> Iterator[Ask]:
    """Return a function that asks for a model with a cache of its own, by the command line."""
    hub.asked.clear()
    hub.sent = 0

    def run(model: str, kind: str = "", *argv: str, **env: str) -> tuple[int, str, str]:
        hub.kind = kind
        own = {"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "hf"), "HF_HUB_ETAG_TIMEOUT": "2"}
        paths = {"PYTHONPATH": str(Path(nearfree.__file__).parents[1])}
        left = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
        done = subprocess.run(
            [sys.executable, "-m", "nearfree", *(argv or PREDICT), "--model", model],
            env=left | own | paths | env,
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
        return done.returncode, done.stdout, done.stderr

    yield run
    assert hub.files <= ASKED


PREDICT = (
    *("predict", "--platform", "h200", "--attention", "flash-attn==2.8.3", "--largest", "4"),
    *("--graphs", "none", "--format", "json"),
)


def answered(found: tuple[int, str, str]) -> dict[str, Any]:
    """Return the deployment of an answer, which has to be one."""
    code, out, err = found
    assert (code, err) == (0, "")
    deployment: dict[str, Any] = json.loads(out)[0]["deployment"]
    return deployment


def refused(found: tuple[int, str, str]) -> str:
    """Return the one line of an error."""
    code, out, err = found
    assert (code, out, err.count("\n")) == (2, "", 1), err
    assert "Traceback" not in err
    return err


def test_an_id_is_fetched_once_and_names_its_commit(ask: Ask, hub: Hub, tmp_path: Path) -> None:
    """What an id says is what its file says; the second question asks nobody, offline or not."""
    first = answered(ask(ID))
    assert (first["model"], first["revision"]) == (f"{ID}@{COMMIT[:7]}", COMMIT)
    assert first["decoder"]["layers"] == json.loads(CONFIG)["num_hidden_layers"]
    assert hub.files == ASKED
    hub.asked.clear()
    assert answered(ask(ID)) == answered(ask(f"{ID}@{COMMIT[:7]}", **OFFLINE)) == first
    assert hub.asked == []
    folder = next((tmp_path / "hf" / "hub").glob("models--*/snapshots/*"))
    assert answered(ask(str(folder))) == first
    text = ("predict", "--platform", "h200", "--attention", "flash-attn==2.8.3", "--largest", "4")
    _, out, _ = ask(ID, "", *text)
    assert out.startswith(f"{ID}@{COMMIT[:7]} on h200, ")


def test_a_revision_is_named_by_branch_tag_or_commit(ask: Ask) -> None:
    """Each revision is answered by the commit that it is."""
    found = {each: answered(ask(f"{ID}@{each}"))["revision"] for each in ("v1", OLDER)}
    assert found == {"v1": OLDER, OLDER: OLDER}


def test_a_repository_that_moved_is_followed(ask: Ask) -> None:
    """A redirect within the hub leads to the files; the id is that which was asked."""
    assert answered(ask("Qwen/old"))["model"] == f"Qwen/old@{COMMIT[:7]}"


def test_files_beside_say_how_weights_are_stored(ask: Ask) -> None:
    """hf_quant_config.json counts; a cache that others filled without it is not believed whole."""
    precision = answered(ask("nvidia/quantised"))["precision"]
    assert precision["weights"] == "float8"


def test_a_cache_with_unknown_files_is_no_answer_offline(ask: Ask, tmp_path: Path) -> None:
    """Where nobody knows whether weights are quantised, it is refused, and a folder is a way out."""
    snapshot = tmp_path / "hf" / "hub" / "models--nvidia--quantised" / "snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_bytes(CONFIG)
    told = refused(ask(f"nvidia/quantised@{COMMIT}", **OFFLINE))
    assert "hf_quant_config.json" in told
    assert str(snapshot) in told
    assert answered(ask(f"nvidia/quantised@{COMMIT}"))["precision"]["weights"] == "float8"


MISTAKES = {
    "a/missing": "a/missing is not on http",
    f"{ID}@v9": f"{ID} has no revision v9",
    "a/gated": "a/gated is gated",
    "a/bare": "a/bare has no config.json at main",
    "a/large": "config.json has 50000009 bytes or more",
    "a/page": "is not JSON",
}


@pytest.mark.parametrize("model", MISTAKES)
def test_what_the_hub_does_not_give_is_one_line(ask: Ask, model: str) -> None:
    """A missing, gated or odd repository is refused by name, with what to do."""
    assert MISTAKES[model] in refused(ask(model))


def test_a_large_file_is_not_taken_in(ask: Ask, hub: Hub) -> None:
    """Whether or not a server says the size, no more than a part is kept of 50 MB."""
    for kind in ("", "unsized"):
        assert "4000000 are the most" in refused(ask("a/large", kind))


FAULTS = {
    "cut": "cannot be fetched: ",
    "html": "is no Hugging Face Hub",
    "climbs": "is no Hugging Face Hub",
    "broken": "answered 503",
    "hangs": "cannot be fetched: ",
}


@pytest.mark.parametrize("kind", FAULTS)
def test_a_server_that_misbehaves_is_one_line(ask: Ask, tmp_path: Path, kind: str) -> None:
    """A body cut short, a page of a network, a path for a commit, an error, no answer at all."""
    assert FAULTS[kind] in refused(ask(ID, kind))
    assert not [each for each in tmp_path.rglob("*") if each.name == "config.json"]
    assert not (tmp_path / "outside").exists()


@pytest.mark.parametrize("env", [OFFLINE, {"HF_ENDPOINT": "http://127.0.0.1:9"}])
def test_without_a_network_it_says_what_to_copy(ask: Ask, hub: Hub, env: dict[str, str]) -> None:
    """Offline and without a cache the line names the files, their page, and the option."""
    told = refused(ask(ID, **env))
    for part in ("config.json", "hf_quant_config.json", f"/{ID} into a folder", "--model"):
        assert part in told
    assert hub.asked == []


ODD = (
    "Qwen/../x",
    "../Qwen",
    "Qwen/a/b",
    f"{ID}@../x",
    f"{ID}@",
    "Qwen/x.json",
    "Q\u202e/w",
    "a/b--c",
)


@pytest.mark.parametrize("model", ODD)
def test_what_is_no_id_is_asked_of_nobody(ask: Ask, hub: Hub, model: str) -> None:
    """A path that climbs, a file's name and odd letters reach no server and no cache."""
    refused(ask(model))
    assert hub.asked == []


def test_a_link_out_of_the_cache_is_refused(ask: Ask, tmp_path: Path) -> None:
    """A snapshot whose config.json is a link to a file elsewhere is not read."""
    answered(ask(ID))
    (tmp_path / "secret.json").write_bytes(CONFIG)
    (held,) = (tmp_path / "hf" / "hub").glob("models--*/snapshots/*/config.json")
    held.unlink()
    held.symlink_to(tmp_path / "secret.json")
    assert "leads out of Hugging Face's cache" in refused(ask(ID))


@pytest.mark.parametrize("command", ["lookup", "surface"])
def test_other_questions_take_ids(ask: Ask, command: str) -> None:
    """The table and the surface answer by id, too."""
    code, out, err = ask(ID, "", command, *PREDICT[1:7], "--batch", "1", "--context", "1024")
    assert (code, err) == (0, "")
    assert f"{ID}@{COMMIT[:7]}" in out


def test_a_draft_model_is_named_by_its_id(ask: Ask) -> None:
    """`schedule --draft` takes what --model does."""
    rates = ("--acceptance", "0.7", "--longest", "2", "--largest-batch", "2", "--context", "1024")
    where = ("--platform", "h200", "--attention", "flash-attn==2.8.3")
    code, out, err = ask("qwen3_30b_a3b", "", "schedule", "sglang", *where, *rates, "--draft", ID)
    assert code == 0, err
    assert out
    assert "no revision v9" in refused(
        ask("qwen3_30b_a3b", "", "schedule", "sglang", *where, *rates, "--draft", f"{ID}@v9")
    )
