"""What a forward needs of a config.json: read by each family's rule, or refused by name."""

import math
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from models.small import KINDS, document
from msgspec import structs
from nearfree.decoders.config_file import read_decoder
from nearfree.decoders.details import Details, read_details
from nearfree.decoders.forms import AttentionForm, Clamp, Form
from nearfree.decoders.layouts.families import FAMILIES
from nearfree.decoders.rope import Llama3, Rope, Yarn
from nearfree.decoders.routers import RouterRule
from nearfree.decoders.weights import stored
from nearfree.errors import ConfigError

from decoders.files import CONFIG, SHIPPED, SMALL, VALUES, change, refusal, write

_PLAIN = {"qk_norm": False, "qkv_bias": False, "output_bias": False}
_NORMED = _PLAIN | {"qk_norm": True}
_MILLION = Rope(theta=1e6, width=128)
_LING = Details(
    rope=Rope(theta=6e5, width=64), norm_eps=1e-6, moe_at=tuple(range(1, 20)),
    router=RouterRule(
        scores="sigmoid", normalised=True, groups=8, kept_groups=4, expert_bias=True, scale=2.5
    ),
    **_NORMED,
)  # fmt: skip
_LLAMA3 = Llama3(factor=8, low_freq_factor=1, high_freq_factor=4, original_positions=8192)
_DEEPSEEK_ROPE = Rope(
    theta=1e4, width=64, yarn=Yarn(factor=40, first=10, last=23, stretch=1), interleaved=True
)
_GPT_OSS_ROPE = Rope(
    theta=150000, width=64,
    yarn=Yarn(
        factor=32, stretch=0.1 * math.log(32) + 1,
        first=64 * math.log(4096 / (32 * 2 * math.pi)) / (2 * math.log(150000)),
        last=64 * math.log(4096 / (2 * math.pi)) / (2 * math.log(150000)),
    ),
)  # fmt: skip
"""The published ranges of YaRN: pairs 10 to 23 of DeepSeek's, not rounded of gpt-oss."""
DETAILS = {
    "deepseek_v2_lite": Details(
        rope=None, norm_eps=1e-6, moe_at=tuple(range(1, 27)),
        router=RouterRule(scores="softmax", normalised=False),
        form=Form(
            attention=(
                AttentionForm(
                    scale=192**-0.5 * (0.1 * 0.707 * math.log(40) + 1) ** 2, rope=_DEEPSEEK_ROPE
                ),
            ),
        ),
        **_PLAIN,
    ),
    "gpt_oss_20b": Details(
        rope=None, norm_eps=1e-5, qk_norm=False, qkv_bias=True, output_bias=True,
        moe_at=tuple(range(24)),
        router=RouterRule(scores="softmax", normalised=True, logit_bias=True),
        form=Form(
            attention=(AttentionForm(scale=0.125, rope=_GPT_OSS_ROPE),) * 2,
            clamp=Clamp(slope=1.702, limit=7.0), expert_biases=True,
        ),
    ),
    "ling_2_0_mini": _LING,
    "llada_2_1_mini": _LING,
    "llama_2_7b": Details(rope=Rope(theta=1e4, width=128), norm_eps=1e-5, **_PLAIN),
    "llama_3_1_8b": Details(
        rope=Rope(theta=5e5, width=128, llama3=_LLAMA3), norm_eps=1e-5, **_PLAIN
    ),
    "llama_3_2_1b": Details(
        rope=Rope(theta=5e5, width=64, llama3=structs.replace(_LLAMA3, factor=32.0)),
        norm_eps=1e-5, tied=True, **_PLAIN,
    ),
    "mistral_7b_v0_3": Details(rope=_MILLION, norm_eps=1e-5, **_PLAIN),
    "mixtral_8x7b": Details(
        rope=_MILLION, norm_eps=1e-5, moe_at=tuple(range(32)),
        router=RouterRule(scores="softmax", normalised=True), **_PLAIN,
    ),
    "qwen3_30b_a3b": Details(
        rope=_MILLION, norm_eps=1e-6, moe_at=tuple(range(48)),
        router=RouterRule(scores="softmax", normalised=True), **_NORMED,
    ),
    "qwen3_8b": Details(rope=_MILLION, norm_eps=1e-6, **_NORMED),
    "wedlm_8b": Details(rope=_MILLION, norm_eps=1e-6, **_NORMED),
}  # fmt: skip
_GEMMA = ("hidden_activation", "rms_norm_eps", "query_pre_attn_scalar")
NEEDED = {
    **dict.fromkeys(KINDS, ("hidden_act", "rms_norm_eps", "rope_theta")),
    "gemma2": (*_GEMMA, "rope_theta"),
    "gemma3_text": (*_GEMMA, "rope_theta", "rope_local_base_freq"),
    "gemma4_text": ("hidden_activation", "rms_norm_eps"),
    "gpt_oss": ("hidden_act", "rms_norm_eps", "rope_theta", "rope_scaling", "swiglu_limit"),
    "llama4_text": ("hidden_act", "rms_norm_eps", "rope_theta", "attn_scale", "floor_scale"),
    "deepseek_v2": (
        "hidden_act", "rms_norm_eps", "rope_theta", "topk_method", "routed_scaling_factor",
    ),
    **dict.fromkeys(
        ("deepseek_v3", "deepseek_v32", "glm_moe_dsa"),
        ("hidden_act", "rms_norm_eps", "rope_theta", "norm_topk_prob", "routed_scaling_factor"),
    ),
    "mistral4": ("hidden_act", "rms_norm_eps", "norm_topk_prob", "routed_scaling_factor"),
    "wedlm": ("hidden_act", "rms_norm_eps", "rope_theta", "qk_norm", "attention_bias"),
    "bailing_moe": (
        "hidden_act", "rms_norm_eps", "rope_theta", "partial_rotary_factor", "use_qk_norm",
        "use_qkv_bias", "use_bias", "score_function", "moe_router_enable_expert_bias",
        "norm_topk_prob", "routed_scaling_factor", "n_group", "topk_group",
    ),
}  # fmt: skip
LLAMA3 = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}  # fmt: skip

YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}


def read(folder: Path, config: dict[str, Any]) -> Details:
    """Return what is read of a document."""
    return read_details(write(folder, config))


def refusal_text(folder: Path, config: dict[str, Any]) -> str:
    """Return how a document is refused."""
    error = refusal(lambda: read(folder, config))
    assert error is not None
    return str(error)


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_each_shipped_model_has_a_forward(path: Path) -> None:
    """Each file under config/models says what its model's forward needs, as published."""
    assert read_details(path) == DETAILS[path.stem]


def test_a_model_type_without_a_forward_is_refused_by_name(tmp_path: Path) -> None:
    """Model types whose forward is not written are predicted, and said not to be measured."""
    for kind in set(FAMILIES) - set(KINDS):
        message = refusal_text(tmp_path, SMALL[kind])
        assert f"model_type '{kind}' is predicted, not measured" in message


def test_a_missing_key_is_named(tmp_path: Path) -> None:
    """Nothing that decides what is computed has a value that the file does not say."""
    for kind, key in ((kind_, key) for kind_ in NEEDED for key in NEEDED[kind_]):
        message = refusal_text(tmp_path, document(kind, **{key: ...}))
        assert re.search(rf": {key}( or rope_parameters)? is missing", message), kind


@pytest.mark.slow
@given(st.data())
@settings(max_examples=400, deadline=None)
def test_a_wrong_value_of_any_key_is_refused_by_name(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Whatever a key holds, the file is read or refused by a name, never otherwise."""
    kind = data.draw(st.sampled_from(KINDS))
    keys = [*document(kind), "rope_scaling", "rope_parameters", "mlp_bias", "partial_rotary_factor"]
    key = data.draw(st.sampled_from(keys))
    config = document(kind) | {key: data.draw(VALUES)}
    path = write(tmp_path_factory.getbasetemp(), config)
    error = refusal(lambda: read_details(path))
    if error is not None:
        assert re.search(rf"\b{key}\b| is not JSON|: [\w.]+ ", error.what)
        assert str(path) in error.what


@pytest.mark.slow
@given(st.dictionaries(st.sampled_from([*LLAMA3, "type", "rope_theta"]), VALUES))
@settings(max_examples=300, deadline=None)
def test_a_scaling_of_any_form_is_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, changes: dict[str, Any]
) -> None:
    """A damaged scaling is refused by a key within it, or read as what it then says."""
    config = document("llama", rope_scaling=LLAMA3 | changes)
    path = write(tmp_path_factory.getbasetemp(), config)
    error = refusal(lambda: read_details(path))
    if error is not None:
        assert re.search(r": rope_scaling\.\w+ |: rope_theta | is not JSON", error.what)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"hidden_act": "gelu"}, "hidden_act 'gelu' is not run"),
        ({"mlp_bias": True}, "mlp_bias True is not run"),
        ({"rope_scaling": {"rope_type": "longrope"}}, "rope_scaling.rope_type 'longrope'"),
        ({"rope_scaling": {"type": "dynamic", "factor": 4.0}}, "rope_scaling.type 'dynamic'"),
        ({"rope_scaling": {"type": "yarn", "factor": 4.0}}, "original_max_position_embeddings is"),
        (
            {"rope_scaling": YARN | {"beta_fast": 0.5, "beta_slow": 200}},
            "rope_scaling.beta_fast 0.5",
        ),
        ({"rope_scaling": {"factor": 4.0}}, "rope_scaling.factor 4.0 stands without rope_type"),
        ({"rope_scaling": {"type": "a", "rope_type": "b"}}, "differs from"),
        ({"rope_scaling": [1]}, "rope_scaling [...] is no object"),
        ({"rope_scaling": LLAMA3 | {"factor": 0}}, "rope_scaling.factor 0 is no number above 0"),
        ({"rope_scaling": LLAMA3 | {"low_freq_factor": 4.0}}, "not below high_freq_factor 4"),
        ({"rope_scaling": LLAMA3, "rope_parameters": LLAMA3}, "beside rope_parameters"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor 0.5 is not understood"),
        ({"head_dim": 7}, "head_dim 7 rotates 7 elements"),
        ({"rms_norm_eps": True}, "rms_norm_eps True is no number"),
        ({"rms_norm_eps": 0}, "rms_norm_eps 0 is no number above 0"),
        ({"rope_theta": 10**400}, "rope_theta 1000"),
        ({"attention_bias": "yes"}, "attention_bias 'yes' is neither true nor false"),
    ],
)
def test_what_is_not_run_is_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    """Another activation, scaling, bias or rotation is refused with its key and value."""
    assert message in refusal_text(tmp_path, document("llama", **changes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"score_function": "softmax"}, "score_function 'softmax' is not run"),
        ({"norm_topk_prob": False}, "norm_topk_prob False"),
        ({"n_group": 3}, "n_group 3 does not divide 16 experts"),
        ({"n_group": 16}, "n_group 16 does not divide 16 experts"),
        ({"topk_group": 5}, "topk_group 5 of 4 groups"),
        ({"n_group": 8, "topk_group": 1}, "topk_group 1 of 8 groups does not hold 4"),
        ({"partial_rotary_factor": 1.5}, "partial_rotary_factor 1.5 is no number"),
        ({"partial_rotary_factor": 0.1}, "partial_rotary_factor 0.1 rotates 1 elements"),
    ],
)
def test_a_router_that_cannot_be_is_refused(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    """Groups must part the experts and hold as many as a token needs."""
    assert message in refusal_text(tmp_path, document("llada2_moe", **changes))


def test_rotations_are_read_in_either_form(tmp_path: Path) -> None:
    """A base beside the scaling and one within rope_parameters say the same."""
    old = read(tmp_path, document("llama", rope_theta=5e5, rope_scaling=LLAMA3))
    inner = LLAMA3 | {"rope_theta": 5e5}
    new = read(tmp_path, document("llama", rope_theta=..., rope_parameters=inner))
    assert old == new
    default = {"rope_type": "default", "rope_theta": 5e5}
    default_rope = read(tmp_path, document("llama", rope_theta=..., rope_parameters=default))
    assert default_rope.rope == Rope(theta=5e5, width=8)


@pytest.mark.parametrize(
    ("value", "bias"), [(..., True), (True, True), (False, False), (None, False)]
)
def test_a_bias_has_its_weights(tmp_path: Path, value: object, *, bias: bool) -> None:
    """Qwen2's class has a bias of query, key and value but where its file says that it has none."""
    path = write(tmp_path, document("qwen2", qkv_bias=value))
    assert read_details(path).qkv_bias is bias
    assert any(weight.name.endswith("q_proj.bias") for weight in stored(path).weights) is bias


@given(st.integers(1, 7), st.lists(st.integers(-2, 8), max_size=4))
@settings(deadline=None)
def test_the_layers_with_experts_are_as_many_as_the_shape_says(
    tmp_path_factory: pytest.TempPathFactory, step: int, dense_layers: list[int]
) -> None:
    """Which layers have experts, and how many, follow from the same keys."""
    config = document("qwen3_moe", decoder_sparse_step=step, mlp_only_layers=dense_layers)
    path = write(tmp_path_factory.getbasetemp(), config | {"intermediate_size": 96})
    assert len(read_details(path).moe_at) == read_decoder(path).moe_layers
    assert all((layer + 1) % step == 0 for layer in read_details(path).moe_at)


def test_a_file_that_has_no_shape_is_refused_as_there(tmp_path: Path) -> None:
    """A file that `read_decoder` refuses is refused by the same words."""
    with pytest.raises(ConfigError, match="hidden_size is missing"):
        read(tmp_path, change("llama", hidden_size=...))


def test_reading_a_model_needs_no_torch() -> None:
    """Reading a config file imports neither torch nor numpy."""
    names = ("decoder", "ranks.modules", "keys", "config_file", "details")
    program = "".join(f"import nearfree.decoders.{name}\n" for name in names)
    program += "import sys; assert not {'torch', 'numpy'} & set(sys.modules)"
    folder = CONFIG.parent / "workflow"
    subprocess.run([sys.executable, "-c", program], check=True, env={"PYTHONPATH": str(folder)})
