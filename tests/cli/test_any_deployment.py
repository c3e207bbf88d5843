"""Random deployments: each is answered, or refused with a remedy."""

from itertools import chain
from pathlib import Path

import pytest
import yaml
from decoders.files import write
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from nearfree.backends.kernels import SELECTIONS
from nearfree.core.precision import FORMATS

from cli.conftest import ROOT, Call
from cli.served_kinds import MODELS

pytestmark = pytest.mark.usefixtures("recorded")
NAMED = sorted(path.stem for path in (ROOT / "config/models").glob("*.json"))
PLATFORMS = sorted(yaml.safe_load((ROOT / "config/platforms.yaml").read_bytes()))
RELEASES = sorted(
    {f"{selection.package}=={release}" for selection in SELECTIONS for release in selection.lines}
)
FORMAT = st.sampled_from(sorted(FORMATS))
OPTIONS = st.fixed_dictionaries(
    {
        "--platform": st.sampled_from(PLATFORMS),
        "--largest": st.sampled_from(["4", "32"]),
        "--tp": st.sampled_from(["1", "2", "8"]),
    },
    optional={
        "--ep": st.sampled_from(["2", "8"]),
        "--dp": st.sampled_from(["2", "8"]),
        "--moe": st.sampled_from([*RELEASES, "vllm", "sglang"]),
        "--batch": st.sampled_from(["1", "64", "1,16"]),
        "--context": st.sampled_from(["1", "128", "100000"]),
        "--weights": FORMAT, "--activations": FORMAT, "--kv-dtype": FORMAT,
        "--routing": st.sampled_from(["balanced", "skewed", "power_law:1.2"]),
    },
)  # fmt: skip
SHOWN = st.sampled_from([("--format", "json"), ("--format", "csv"), (), ("--all",)])


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return config files of served models, one for each kind."""
    folder = tmp_path_factory.mktemp("kinds")
    return {name: write(folder, model, f"{name}.json") for name, model in MODELS.items()}


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(model=st.sampled_from([*NAMED, *MODELS]), options=OPTIONS, shown=SHOWN)
def test_any_deployment_is_answered_or_refused(
    call: Call, files: dict[str, Path], model: str, options: dict[str, str], shown: tuple[str, ...]
) -> None:
    """Whatever formats, releases, platform and ranks: an answer, or reasons and exit code 2."""
    options_as_words = chain.from_iterable(options.items())
    arguments = ("--model", str(files.get(model, model)), *options_as_words, *shown)
    code, out, err = call("predict", *arguments)
    assert (code, err) == (0, "") or (code == 2 and out + err)
    assert err == "" or err.startswith("nearfree: error: ")


@pytest.mark.parametrize("shown", [(), ("--all",), ("--format", "json")])
def test_a_step_that_the_host_dominates_is_answered(call: Call, shown: tuple[str, ...]) -> None:
    """Where the host takes nearly all of a step, its longest module is named."""
    deployment = ("--model", "gpt_oss_20b_cpu", "--platform", "h100", "--moe", "sglang==0.5.14")
    code, out, err = call("predict", *deployment, "--largest", "4", *shown)
    assert (code, err) == (0, "")
    assert "R2" in out or "other shapes on this GPU" in out
