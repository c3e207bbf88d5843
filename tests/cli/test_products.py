"""Products on a CPU on the command line: `granularity` of llama.cpp's releases."""

from typing import Any

import pytest
from msgspec import json

from cli.conftest import Call

pytestmark = pytest.mark.usefixtures("recorded")
PREBUILT, BUILT = "llama_cpp==3.22.1", "llama.cpp==0.3.36"
ZEN4 = "avx2,f16c,fma,avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx512vnni"


def answer(call: Call, *argv: str) -> dict[str, Any]:
    """Return an answer."""
    code, out, err = call("granularity", *argv, "--offline", "--format", "json")
    assert (code, err) == (0, "")
    return dict(json.decode(out))


def test_passes_have_files_lines_and_hashes(call: Call) -> None:
    """An answer has each kind of passes, with the release's files and lines."""
    document = answer(call, PREBUILT, "--type", "q4_k", "--rows", "17", "--cpu-flags", ZEN4)
    (interval,) = document["intervals"]
    assert [(p["path"], p["holds"], p["times"]) for p in interval["passes"]] == [
        ("repack_gemm", 16, 1),
        ("repack_gemv", 1, 1),
    ]
    for passes in interval["passes"]:
        for rule in passes["rules"]:
            assert rule["lines"][0] > 0
            assert len(rule["sha256"]) == 64
    assert document["notes"] == ["--d-ff and --d-model default to 4096 elements"]
    assert (document["package"], document["version"]) == ("llama-cpp", "3.22.1")


def test_weights_that_are_not_repacked(call: Call) -> None:
    """`--no-repack` selects the other rules, and both spellings of the engine are known."""
    options = ("--type", "q4_k", "--rows", "8:33", "--cpu-flags", ZEN4, "--no-repack")
    document = answer(call, BUILT, *options, "--d-ff", "1536", "--d-model", "576")
    assert [(i["from"], i["to"], i["step"]) for i in document["intervals"]] == [
        (8, 16, "tiled"),
        (17, 32, "tiled_micro"),
        (33, 33, "tiled_micro"),
    ]
    assert document["notes"] == []


def test_an_expert_s_matrix_has_rules_of_its_own(call: Call) -> None:
    """`--expert` says that rows are those of one expert: repacked, each is a pass."""
    options = ("--type", "q4_k", "--rows", "16", "--cpu-flags", ZEN4)
    document = answer(call, PREBUILT, *options, "--expert")
    (passes,) = document["intervals"][0]["passes"]
    assert (document["routed"], passes["path"], passes["times"]) == (True, "expert_gemv", 16)
    assert passes["rules"][0]["rule"] == "expert_repack_rows"
    (dense,) = answer(call, PREBUILT, *options)["intervals"][0]["passes"]
    assert (dense["path"], dense["times"]) == ("repack_gemm", 1)


def test_the_text_has_a_line_a_rule(call: Call) -> None:
    """The table names the kinds of passes, their rules, files and lines."""
    code, out, err = call("granularity", PREBUILT, "--type", "Q8_0", "--rows", "9",
                          "--cpu-flags", ZEN4, "--offline")  # fmt: skip
    assert (code, err) == (0, "")
    assert "2 x 4 rows  sgemm tinyBLAS_Q0_AVX" in out
    assert "block_tile  ggml/src/ggml-cpu/llamafile/sgemm.cpp:" in out


def test_the_machines_flags_are_the_default(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    """For the prebuilt library the default is the variant that this machine would load."""
    machine = frozenset({"sse42", "avx", "f16c", "fma", "avx2", "bmi2"})
    monkeypatch.setattr("nearfree.cli.products.cpu_flags", lambda: machine)
    document = answer(call, PREBUILT, "--type", "q8_0", "--rows", "9")
    assert document["variant"] == "haswell"
    assert document["cpu_flags"] == ["avx", "avx2", "f16c", "fma"]
    built = answer(call, BUILT, "--type", "q8_0", "--rows", "9")
    assert built["variant"] is None
    assert built["notes"][0] == "assumed: the library is built for this machine's CPU"


@pytest.mark.parametrize(
    ("argv", "names"),
    [
        ((PREBUILT,), "--type"),
        ((PREBUILT, "--type", "q4_k_m"), "'q4_k_m'"),
        ((PREBUILT, "--type", "tq1_0"), "'tq1_0'"),
        ((PREBUILT, "--type", "iq2_xxs"), "IQ2_XXS by panels"),
        ((PREBUILT, "--type", "q8_0", "--cpu-flags", "neon"), "'neon'"),
        ((PREBUILT, "--type", "q8_0", "--rows", "9:3"), "9:3"),
        ((PREBUILT, "--type", "q8_0", "--rows", "0"), "0"),
        ((PREBUILT, "--type", "q8_0", "--rows", "99999"), "4096 rows"),
        (("llama_cpp==3.22.x", "--type", "q8_0"), "'3.22.x'"),
        (("llama_cpp", "--type", "q8_0"), "'llama_cpp'"),
    ],
)
def test_mistakes_are_named(call: Call, argv: tuple[str, ...], names: str) -> None:
    """Each mistake ends with exit code 2 and one message that names the thing."""
    code, out, err = call("granularity", *argv, "--offline")
    assert (code, out) == (2, "")
    assert names in err
    assert "Traceback" not in err
