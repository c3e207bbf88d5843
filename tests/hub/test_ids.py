"""Models by their Hugging Face ids: the real library against a hub on this machine."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import nearfree
import pytest
from nearfree.decoders.model_file import read_model_file

from hub.server import COMMIT, OLDER, Hub, serving

ROOT = Path(__file__).parents[2]
CONFIG = (ROOT / "config" / "models" / "qwen3_8b.json").read_bytes()
QUANTISED = json.dumps({"quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": None}})
ASKED = {"config.json", "hf_quant_config.json", "quantize_config.json", "quant_config.json"}
ID = "Qwen/Qwen3-8B"
OFFLINE = {"HF_HUB_OFFLINE": "1"}
Ask = Callable[..., subprocess.CompletedProcess[str]]
Find = Callable[..., list[str]]
FIND = """
import sys
from pathlib import Path
from nearfree.errors import ConfigError
from nearfree.hub.model_name import resolve_model
for model in sys.argv[1:]:
    try:
        print(resolve_model(Path("config"), model))
    except ConfigError as error:
        print(error)
"""


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
def run(hub: Hub, tmp_path: Path) -> Iterator[Ask]:
    """Return a function that runs Python with a cache of its own and the hub of this machine."""
    hub.requests.clear()

    def program(*argv: str, kind: str = "", **env: str) -> subprocess.CompletedProcess[str]:
        hub.kind = kind
        own = {"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "hf"), "HF_HUB_ETAG_TIMEOUT": "2"}
        paths = {"PYTHONPATH": str(Path(nearfree.__file__).parents[1])}
        left = {name: value for name, value in os.environ.items() if not name.startswith("HF_")}
        return subprocess.run(
            [sys.executable, *argv],
            env=left | own | paths | env,
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )

    yield program
    assert hub.files <= ASKED


@pytest.fixture
def find(run: Ask) -> Find:
    """Return a function that finds models: the path of each, or the line that refuses it."""

    def find_models(*models: str, kind: str = "", **env: str) -> list[str]:
        done = run("-c", FIND, *models, kind=kind, **env)
        assert (done.returncode, done.stderr) == (0, "")
        lines = done.stdout.splitlines()
        assert len(lines) == len(models)
        return lines

    return find_models


PREDICT = (
    *("predict", "--platform", "h200", "--attention", "flash-attn==2.8.3", "--largest", "4"),
    *("--graphs", "none"),
)


def test_an_id_is_fetched_once_and_names_its_commit(run: Ask, hub: Hub, tmp_path: Path) -> None:
    """An id gives its file's answer; the second question makes no request, offline or not."""
    first = run("-m", "nearfree", *PREDICT, "--format", "json", "--model", ID)
    assert (first.returncode, first.stderr) == (0, "")
    deployment = json.loads(first.stdout)[0]["deployment"]
    assert (deployment["model"], deployment["revision"]) == (f"{ID}@{COMMIT[:7]}", COMMIT)
    assert deployment["decoder"]["layers"] == json.loads(CONFIG)["num_hidden_layers"]
    assert hub.files == ASKED
    hub.requests.clear()
    again = run("-m", "nearfree", *PREDICT, "--model", f"{ID}@{COMMIT[:7]}", **OFFLINE)
    assert again.stdout.startswith(f"{ID}@{COMMIT[:7]} on h200, ")
    assert hub.requests == []


def test_the_cache_is_read_before_the_hub(find: Find, hub: Hub, tmp_path: Path) -> None:
    """A cached branch, commit or commit prefix makes no request."""
    (first,) = find(ID)
    hub.requests.clear()
    assert find(ID, f"{ID}@main", f"{ID}@{COMMIT}", f"{ID}@{COMMIT[:7]}") == [first] * 4
    assert find(ID, **OFFLINE) == [first]
    assert Path(first).is_relative_to(tmp_path / "hf" / "hub")
    assert hub.requests == []


def test_a_revision_is_a_branch_a_tag_or_a_commit(find: Find) -> None:
    """Each revision resolves to its commit; a moved repository is followed."""
    ids = (f"{ID}@v1", f"{ID}@refs/pr/1", f"{ID}@{OLDER}", "Qwen/old")
    files = [read_model_file(Path(path)) for path in find(*ids)]
    assert [file.revision for file in files] == [OLDER, OLDER, OLDER, COMMIT]
    assert files[-1].name == f"Qwen/old@{COMMIT[:7]}"


def test_a_cache_with_unknown_files_is_no_answer_offline(find: Find, tmp_path: Path) -> None:
    """Offline, unknown quantisation is refused, and a folder is accepted instead.

    With a network the missing file is fetched and used.
    """
    model = f"nvidia/quantised@{COMMIT}"
    snapshot = tmp_path / "hf" / "hub" / "models--nvidia--quantised" / "snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_bytes(CONFIG)
    (refusal,) = find(model, **OFFLINE)
    assert "hf_quant_config.json" in refusal
    assert refusal.endswith(f"give the folder {snapshot}")
    (path,) = find(model)
    precision = read_model_file(Path(path)).precision
    assert precision is not None
    assert precision.ffn.weights == "float8"


MISTAKES = {
    "a/missing": "a/missing is not on http",
    f"{ID}@v9": f"{ID} has no revision v9",
    "a/gated": "a/gated is gated",
    "a/bare": "a/bare has no config.json at main",
    "a/large": "config.json has 50000009 bytes or more, and the limit is 4000000",
}


def test_what_the_hub_does_not_give_is_refused(find: Find) -> None:
    """A missing, gated or odd repository or revision is refused by name."""
    for refusal, part in zip(find(*MISTAKES), MISTAKES.values(), strict=True):
        assert part in refusal


@pytest.mark.parametrize(("model", "part"), [("a/gated", "is gated"), ("a/page", "is not JSON")])
def test_a_refusal_is_one_line(run: Ask, model: str, part: str) -> None:
    """On the command line it is one line of error, and exit code 2."""
    done = run("-m", "nearfree", *PREDICT, "--model", model)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert part in done.stderr


FAULTS = {
    "cut": "cannot be fetched: ",
    "html": "is no Hugging Face Hub",
    "climbs": "is no Hugging Face Hub",
    "broken": "answered 503",
    "hangs": "cannot be fetched: ",
    "unsized": "the limit is 4000000",
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", FAULTS)
def test_a_server_that_misbehaves_is_refused(find: Find, tmp_path: Path, kind: str) -> None:
    """A truncated body, a login page, a path as commit, an error, a timeout, no size."""
    assert FAULTS[kind] in find("a/large" if kind == "unsized" else ID, kind=kind)[0]
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert sum(path.stat().st_size for path in files) < len(CONFIG)
    assert not [path for path in files if not path.is_relative_to(tmp_path / "hf")]


@pytest.mark.parametrize("env", [OFFLINE, {"HF_ENDPOINT": "http://127.0.0.1:9"}])
def test_without_a_network_the_refusal_names_the_files_to_copy(
    find: Find, hub: Hub, env: dict[str, str]
) -> None:
    """The refusal names the files, their page and the option, also without a cache."""
    (refusal,) = find(ID, **env)
    for part in ("config.json", "hf_quant_config.json", f"/{ID} into a folder", "--model"):
        assert part in refusal
    assert hub.requests == []


def test_a_link_out_of_the_cache_is_refused(find: Find, tmp_path: Path) -> None:
    """A snapshot whose config.json is a link to a file elsewhere is not read."""
    (path,) = find(ID)
    (tmp_path / "secret.json").write_bytes(CONFIG)
    Path(path).unlink()
    Path(path).symlink_to(tmp_path / "secret.json")
    assert "leads out of Hugging Face's cache" in find(ID)[0]


def test_a_surface_is_answered_by_id(run: Ask) -> None:
    """Commands other than `predict` accept ids, too."""
    one = ("--batch", "1", "--context", "1024")
    done = run("-m", "nearfree", "surface", *PREDICT[1:], *one, "--model", ID)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"{ID}@{COMMIT[:7]} on h200")


def test_a_draft_model_is_named_by_its_id(run: Ask, hub: Hub) -> None:
    """`schedule --drafter` takes what --model does."""
    rates = ("--acceptance", "0.7", "--longest", "2", "--largest-batch", "2", "--context", "1024")
    model = (*PREDICT[1:5], "--model", "qwen3_30b_a3b", *rates, "--drafter", ID)
    done = run("-m", "nearfree", "schedule", "sglang", *model)
    assert done.returncode == 0, done.stderr
    assert done.stdout
    assert hub.files == ASKED
