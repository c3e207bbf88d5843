"""What is named in place of a refused deployment was asked, and is answered."""

from pathlib import Path
from typing import Any

import pytest
from decoders.files import change, write
from decoders.quantised import GPTQ
from nearfree.config.files import DeploymentSpec
from nearfree.core.parallel import Parallel
from nearfree.core.precision import Dtype
from nearfree.derive.predict.forecast.alternatives import Alternatives
from nearfree.derive.predict.forecast.degrees import tp_options
from nearfree.derive.predict.forecast.expand_deployments import deployments, expand
from nearfree.derive.predict.forecast.forecast import forecast

from derive.predict.forecast.pool import ANSWERER, CONFIG

SPARSE, DENSE = "qwen3_30b_a3b", "qwen3_8b"
MXFP8 = {"quant_method": "modelopt", "quant_algo": "MXFP8", "group_size": 32}


def asked(model: str, platform: str, **changes: Any) -> DeploymentSpec:
    """Return a query about one model and platform, for one request."""
    return DeploymentSpec(models=(model,), platforms=(platform,), **changes)


def instead(spec: DeploymentSpec) -> set[tuple[str, ...]]:
    """Return the options that the refused deployments of a query name."""
    queries = deployments(CONFIG, spec)
    answers = forecast(queries, ANSWERER, [], grid=[1], predictors=[], full=False)
    named = Alternatives(CONFIG, spec, ANSWERER).named(answers)
    return {query.instead for query in named.deployments}


@pytest.mark.parametrize(
    ("platform", "weights", "options"),
    [
        (
            "h100",
            "nvfp4",
            {"--weights float8_block", "--moe vllm==0.24.0"},
        ),  # Marlin; 0.33.0 runs Humming
        ("h100", "float8", {"--weights float8_block", "--moe sglang==0.5.23"}),
        ("a100", "nvfp4", set()),
        ("b200", "nvfp4", set()),
        ("b200", "float8", {"--weights float8_block", "--moe vllm==0.9.1"}),
    ],
)
def test_the_nearest_that_answer_are_named(
    platform: str, weights: Dtype, options: set[str]
) -> None:
    """They are the nearest format and the newest releases of both engines that are answered."""
    (named,) = instead(asked(SPARSE, platform, weights=weights, moe=("vllm",)))
    assert options <= set(named)
    assert options or not named


@pytest.mark.parametrize("section", [{**GPTQ, "bits": 8}, MXFP8])
@pytest.mark.parametrize("platform", ["h100", "b200"])
def test_a_format_that_no_release_answers_has_another(
    section: dict[str, Any], platform: str, tmp_path: Path
) -> None:
    """Experts in 8-bit integers with rows in 16 bits, and in mxfp8: a format that is answered."""
    text = write(tmp_path, change("qwen3_moe", quantization_config=section, head_dim=128,
                                  hidden_size=1024, moe_intermediate_size=768))  # fmt: skip
    (named,) = instead(asked(str(text), platform))
    assert [option.partition(" ")[0] for option in named] == ["--weights"]


def test_a_tp_over_nodes_without_bandwidth_is_spread_otherwise() -> None:
    """GB10 has one GPU a node: groups of one GPU are answered, stages between nodes are not."""
    (named,) = instead(asked(DENSE, "gb10", tp=2))
    assert named == ("--tp 1 --dp 2",)


def test_degrees_conceal_no_reason() -> None:
    """A degree that divides nothing is refused beside what the kernels lack."""
    spec = asked(SPARSE, "h100", tp=16, weights="mxfp8")
    _, unanswered = expand(CONFIG, spec)
    (query,) = Alternatives(CONFIG, spec, ANSWERER).completed(unanswered)
    degree, kernels = query.refusals
    assert "16 does not divide" in degree.reason
    assert "T(N) is not known: MoE FFN: no MoE rules of vllm for mxfp8" in kernels.reason


@pytest.mark.parametrize("weights", [None, "mxfp8"])
def test_a_release_with_the_class_is_named_if_it_answers(
    weights: Dtype | None, tmp_path: Path
) -> None:
    """Where all that have the class lack something else, that is said in its place."""
    names = ["Qwen3NextForCausalLM"]
    file = write(tmp_path, change("qwen3_moe", architectures=names), "config.json")
    spec = asked(str(file), "h200", moe=("vllm==0.9.1",), weights=weights)
    _, unanswered = expand(CONFIG, spec)
    (query,) = Alternatives(CONFIG, spec, ANSWERER).completed(unanswered)
    if weights is None:
        (refusal,) = query.refusals
        assert refusal.remedy == "Name --moe sglang==0.5.23 or --moe vllm==0.33.0"
    else:
        reasons = [refusal.reason for refusal in query.refusals]
        assert any("with --moe vllm==0.33.0, T(N) is not known: MoE FFN" in why for why in reasons)
        assert not any("Name --moe" in refusal.remedy for refusal in query.refusals)


def test_two_options_are_named_where_none_helps_alone() -> None:
    """A cache and weights whose kernels are both unread are changed together, if one is not enough.

    What is named is answered, and each of the two is needed.
    """
    spec = asked(SPARSE, "l40s", weights="mxfp8", kv_dtype="int8")
    (named,) = instead(spec)
    assert "--weights float8 --kv-dtype bfloat16" in named
    for changes, answered in (
        ({"weights": "float8", "kv_dtype": "bfloat16"}, True),
        ({"weights": "float8"}, False),
        ({"kv_dtype": "bfloat16"}, False),
    ):
        (reasons,) = Alternatives(CONFIG, spec, ANSWERER).reasons(SPARSE, "l40s", [changes])
        assert (not reasons) == answered


def test_a_format_of_everything_has_another_of_everything() -> None:
    """What `--dtype` names is no format of weights alone: another `--dtype` is named."""
    assert instead(asked(DENSE, "h100", dtype="float32")) == {("--dtype bfloat16",)}


def test_a_platform_is_named_where_no_option_helps() -> None:
    """No kernel selects positions on compute capability 12.0: a platform that has one is named."""
    model = str(CONFIG.folder / "whole/models/glm_5.json")
    (named,) = instead(asked(model, "rtx_pro_6000"))
    assert [option.partition(" ")[0] for option in named] == ["--platform"]
    platform = named[0].split()[1]
    memory = {name: CONFIG.platforms[name].memory_gb or 0 for name in ("rtx_pro_6000", platform)}
    assert memory[platform] >= memory["rtx_pro_6000"]


def test_what_degrees_conceal_has_a_remedy_of_its_own() -> None:
    """A tp that divides nothing conceals a cache that no kernel reads: both say what helps."""
    spec = asked(DENSE, "h100", tp=3, kv_dtype="int8")
    _, unanswered = expand(CONFIG, spec)
    (query,) = Alternatives(CONFIG, spec, ANSWERER).completed(unanswered)
    concealed = [why for why in query.refusals if why.reason.startswith("T(N) is not known")]
    assert [why.remedy.partition("such as ")[2] for why in concealed] == ["--kv-dtype bfloat16"]


@pytest.mark.parametrize(
    ("degrees", "option"), [({"tp": 8, "pp": 2}, ""), ({"gpus": 16}, " --tp 8 --pp 2")]
)
def test_without_a_network_a_platform_with_one_is_named(
    degrees: dict[str, int], option: str
) -> None:
    """GPUs of several nodes need a known network: named is where it is, with tp on a node."""
    spec = asked(DENSE, "h20", **degrees)
    _, unanswered = expand(CONFIG, spec)
    (query,) = Alternatives(CONFIG, spec, ANSWERER).completed(unanswered)
    (refusal,) = query.refusals
    assert refusal.remedy.endswith(f"; or ask where it is: --platform h200{option}")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"tp": 3}, "--tp 2"),
        ({"gpus": 3}, "--tp 2 --gpus 2"),
        ({"tp": 3, "kv_dtype": "int8"}, None),
    ],
)
def test_the_next_smaller_tp_that_is_answered_is_named(
    changes: dict[str, Any], words: str | None
) -> None:
    """A tp that divides one thing may not divide another: named is one that leaves no reason."""
    spec = asked(DENSE, "h100", **changes)
    _, unanswered = expand(CONFIG, spec)
    (query,) = Alternatives(CONFIG, spec, ANSWERER).completed(unanswered)
    named = [why.remedy for why in query.refusals if why.remedy.endswith("is answered")]
    assert [remedy.rpartition("; ")[2] for remedy in named] == (
        [f"{words} is answered"] if words else []
    )


@pytest.mark.parametrize(("node", "degrees"), [(8, [8, 7, 6, 5, 4, 3, 2, 1]), (None, [1])])
def test_no_tp_beyond_a_node_is_tried(node: int | None, degrees: list[int]) -> None:
    """However many GPUs are asked for, each tp that is tried is of one node."""
    options = tp_options(Parallel(tp=99_999), None, node)
    assert [changes["tp"] for _, changes in options] == degrees


def test_a_platform_with_a_network_is_named_with_as_many_gpus() -> None:
    """What tp does not fill a node is not made smaller to name another platform."""
    spec = asked(DENSE, "h20", gpus=12)
    _, unanswered = expand(CONFIG, spec)
    (query,) = Alternatives(CONFIG, spec, ANSWERER).completed(unanswered)
    assert not any("--platform" in refusal.remedy for refusal in query.refusals)
