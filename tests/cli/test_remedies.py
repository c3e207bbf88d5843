"""Every remedy that a refusal prints works: what it names is asked, and leaves no new reason."""

import json
import re
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import yaml
from decoders.files import write
from hypothesis import HealthCheck, Phase, assume, given, settings
from hypothesis import strategies as st
from nearfree.backends.kernels import SELECTIONS

from cli.conftest import ROOT, Call
from cli.served_kinds import MODELS

pytestmark = pytest.mark.usefixtures("recorded")
_SHEETS = yaml.safe_load((ROOT / "config/platforms.yaml").read_bytes())
GPUS = sorted(name for name, sheet in _SHEETS.items() if sheet["kind"] == "cuda")
NAMED = sorted(
    path.stem
    for path in (ROOT / "config/models").glob("*.json")
    if not path.stem.endswith(("_cpu", "_cut"))
)
RELEASES = sorted(
    {f"{selection.package}=={release}" for selection in SELECTIONS for release in selection.lines}
)
GROUPED = {"quant_method": "gptq", "bits": 8, "group_size": 128, "sym": True, "desc_act": False}
OPTIONS = st.fixed_dictionaries(
    {"--platform": st.sampled_from(GPUS)},
    optional={
        "--moe": st.sampled_from([*RELEASES, "vllm", "sglang"]),
        "--weights": st.sampled_from(
            ["float8", "float8_block", "mxfp8", "int8", "int4", "nvfp4", "mxfp4", "bfloat16"]
        ),
        "--kv-dtype": st.sampled_from(["float8", "int8", "nvfp4", "bfloat16"]),
        "--tp": st.sampled_from(["2", "4", "8", "16"]),
        "--ep": st.sampled_from(["2", "8"]),
        "--attention": st.sampled_from(
            ["flash-attn", "vllm-fa3", "vllm-triton", "flashinfer", "vllm-mla", "flash-attn-4"]
        ),
    },
)  # fmt: skip
_OPTION = (
    r"--(?:platform|moe|weights|activations|attention|kv-dtype|dtype|dense|tp|dp|ep|pp|gpus) "
    r"[\w.=+-]*\w"
)
_CONCEALED = re.compile(r"^(?:with --moe \S+, )?T\(N\) is not known: ")
REMEDY = re.compile(rf"{_OPTION}(?: {_OPTION})*")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return config files of served models, and of one whose experts are in 8-bit integers."""
    folder = tmp_path_factory.mktemp("kinds")
    sparse = json.loads((ROOT / "config/models/qwen3_30b_a3b.json").read_bytes())
    kinds: dict[str, Any] = {**MODELS, "w8a16": {**sparse, "quantization_config": GROUPED}}
    return {name: write(folder, model, f"{name}.json") for name, model in kinds.items()}


def refusals(call: Call, options: dict[str, str]) -> list[dict[str, str]]:
    """Return the refusals of a deployment; empty if it is answered."""
    words = chain.from_iterable(options.items())
    _, out, err = call("predict", *words, "--largest", "2", "--format", "json")
    assert not err
    return [refusal for entry in json.loads(out) for refusal in entry["refusals"]]


def reasons(found: list[dict[str, str]]) -> set[str]:
    """Return every reason apart, without the modules that it is about."""
    parts = chain.from_iterable(
        _CONCEALED.sub("", "{key} {reason}".format(**refusal).strip()).split("; ")
        for refusal in found
    )
    return {part.rpartition(": ")[2] if "--" not in part else part for part in parts}


@pytest.mark.slow
@settings(
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.filter_too_much],
    phases=[Phase.generate],  # shrinking would take minutes
)
@given(model=st.sampled_from([*NAMED, *MODELS, "w8a16"]), options=OPTIONS)
def test_a_remedy_leaves_no_new_reason(
    call: Call, files: dict[str, Path], model: str, options: dict[str, str]
) -> None:
    """Whoever does what one remedy says is answered, or meets a reason that was told before."""
    options = {"--model": str(files.get(model, model)), **options}
    first = refusals(call, options)
    assume(first)
    for refusal in first:
        printed = f"{refusal['reason']}. {refusal['remedy']}"
        for remedy in REMEDY.findall(printed):
            words = remedy.split()
            if not remedy.endswith("VERSION"):
                changed = dict(zip(words[::2], words[1::2], strict=True))
                following = refusals(call, {**options, **changed})
                assert refusal not in following, remedy
                assert reasons(following) <= reasons(first), remedy


@pytest.mark.parametrize("command", [("predict",), ("lookup",), ("surface",), ("schedule", "vllm")])
def test_every_command_names_every_reason(call: Call, command: tuple[str, ...]) -> None:
    """A degree that divides nothing does not hide what the kernels lack, whatever is asked."""
    about = ("--model", "qwen3_30b_a3b", "--platform", "h100", "--tp", "3", "--weights", "nvfp4")
    code, _, err = call(*command, *about)
    assert code == 2
    assert "tp 3 does not divide 32 heads" in err
    assert "h100 has no nvfp4 units; weights alone can be nvfp4 there" in err
