"""The command `rules check`, over a package index of our own and without one."""

import shutil
from pathlib import Path

import pytest
from msgspec import json
from msgspec.structs import replace
from nearfree.log.line import sha256
from nearfree.log.names import Layout
from nearfree.log.take import ensure_events
from nearfree.sources.binaries.record import PACKAGES, list_plan, list_take, recorded_listing
from sources.binaries.tiny import library, sound
from sources.fetching.indexserver import Entry, Server, make_wheel, server

from cli.conftest import Call

__all__ = ["server"]
ROOT = Path(__file__).parents[2]
BINARY = PACKAGES["xformers"].binaries[0].path
PROGRAM = "triton/backends/nvidia/bin/cuobjdump"


@pytest.fixture
def recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a root with the rules and binaries of two releases, without the network."""
    for stream in ("xformers_0_0_34", "binaries_xformers_0_0_34"):
        below = Path("results/events/sources") / stream
        shutil.copytree(ROOT / below, tmp_path / below)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("NEARFREE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    return tmp_path


def test_a_binary_on_record_is_checked_without_the_network(recorded: Path, call: Call) -> None:
    """JSON counts the points and lists each difference with rule, binary and explanation."""
    code, out, err = call("rules", "check", "xformers==0.0.34", "--offline", "--format", "json")
    assert (code, err) == (0, "")
    document = json.decode(out)
    assert document["points"] == sum(binary["points"] for binary in document["binaries"]) > 500
    for difference in document["differences"]:
        assert set(difference) == {"point", "rule", "binary", "explained"}
        assert difference["explained"]
    (binary,) = document["binaries"]
    assert binary["rules"] == "xformers==0.0.34"
    code, text, _ = call("rules", "check", "xformers==0.0.34", "--offline")
    assert code == 0
    assert (
        f"{document['points']} points, {len(document['differences'])} differences, 0 of them"
        in text
    )


def test_a_planted_difference_ends_with_exit_code_2(recorded: Path, call: Call) -> None:
    """A recorded binary with another tile is a finding, reported in one line."""
    layout = Layout(recorded / "results")
    (listing,) = recorded_listing(layout, "xformers", "0.0.34")
    kernels = [
        replace(kernel, rows=256) if (kernel.rows, kernel.mask) == (192, "causal") else kernel
        for kernel in listing.held
    ]
    plan = list_plan("xformers", "0.0.34")
    events = [replace(listing, held=tuple(kernels))]
    ensure_events(layout, list_take("xformers", "0.0.34", 2), plan, "planted", lambda: events)
    code, out, _ = call("rules", "check", "xformers==0.0.34", "--offline", "--take", "2")
    assert code == 2
    assert "rule 192, binary 256: UNEXPLAINED" in out


@pytest.mark.parametrize("release", ["flashinfer-cubin==0.6.1", "nvidia-cublas-cu12==12.9.1", "x"])
def test_other_packages_are_refused_by_name(recorded: Path, call: Call, release: str) -> None:
    """Nothing is fetched of a package whose licence does not allow looking inside."""
    code, out, err = call("rules", "check", release)
    assert (code, out) == (2, "")
    assert release.partition("==")[0] in err
    assert "vllm, sgl-kernel, xformers" in err


@pytest.mark.parametrize("version", ["latest", "", "0.20.2=="])
def test_a_text_that_is_no_version_is_refused(call: Call, version: str) -> None:
    """A binary's release is spelled as any other: a text that is no version is named."""
    code, out, err = call("rules", "check", f"vllm=={version}")
    assert (code, out) == (2, "")
    assert f"{version!r} is no version of vllm. Give one like 1.2.3" in err


@pytest.fixture
def offered(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Server:
    """Return an index with a dumper of our own, which a lock in the working folder pins."""
    program = b"#!/bin/sh\necho 'arch = sm_90'\n"
    server.put("triton-3.6.0-py3-none-any.whl", make_wheel(Entry(PROGRAM, program)))
    (tmp_path / "envs").mkdir()
    pins = {"triton": {"3.6.0": {PROGRAM: sha256(program)}}}
    (tmp_path / "envs/dumper.lock").write_bytes(json.encode(pins))
    monkeypatch.setenv("NEARFREE_CACHE", str(tmp_path / "cache"))
    return server


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (sound()[:-1], "tables lie outside"),
        (b"no ELF file at all", "no ELF file"),
        (library(b"", sections=60_000), "60000 sections"),
        (sound(), "no complete device function"),
    ],
)
def test_a_hostile_binary_is_one_message(
    offered: Server, tmp_path: Path, call: Call, raw: bytes, reason: str
) -> None:
    """A wheel that is whole, but holds no honest library, ends with exit code 2 and no seal."""
    offered.put("xformers-9.9.9-py3-none-any.whl", make_wheel(Entry(BINARY, raw)))
    code, out, err = call("rules", "check", "xformers==9.9.9")
    assert (code, out) == (2, "")
    assert reason in err
    assert err.count("\n") == 1
    assert not list(tmp_path.glob("results/events/sources/*/*.seal.json"))


def test_granularity_shows_the_recorded_resources_of_blocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: Call
) -> None:
    """Registers, blocks per SM and the instruction are printed with the block that runs."""
    for stream in ("vllm_0_9_1", "compiled_vllm_0_9_1"):
        below = Path("results/events/sources") / stream
        shutil.copytree(ROOT / below, tmp_path / below)
    (tmp_path / "config").symlink_to(ROOT / "config")
    (tmp_path / "envs").symlink_to(ROOT / "envs")
    monkeypatch.chdir(tmp_path)
    layer = ("--experts", "8", "--top-k", "2", "--d-ff", "14336", "--d-model", "4096")
    command = ("granularity", "vllm==0.9.1", *layer, "--device", "NVIDIA A100-SXM4-80GB")
    code, out, err = call(*command, "--tokens", "1:64", "--offline")
    assert (code, err) == (0, "")
    assert (
        "1 to 8      block 16 x 32 x 64, 4 warps, 3 stages: 40 registers, 12 blocks per SM" in out
    )
    assert "mma.sync  (triton 3.6.0, compiled)" in out
    document = json.decode(call(*command, "--tokens", "1:64", "--offline", "--format", "json")[1])
    assert [(interval["from"], interval["to"]) for interval in document["compiled"]] == [
        (1, 8),
        (9, 64),
    ]
    shutil.rmtree(tmp_path / "results/events/sources/compiled_vllm_0_9_1")
    assert "blocks per SM" not in call(*command, "--tokens", "1:64", "--offline")[1]
    code, _, err = call("rules", "compile", "vllm==0.9.1", "--offline")
    assert code == 2
    assert "nearfree environment make interpreter" in err
