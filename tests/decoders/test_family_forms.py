"""How today's families compute: what their files say, and what is refused."""

from pathlib import Path
from typing import Any

import pytest
from models.small import document
from nearfree.decoders.details import Details, read_details
from nearfree.decoders.forms import AttentionForm, Form

from decoders.files import refusal, write


def read(folder: Path, kind: str, **changes: Any) -> Details:
    """Return what is read of a small file with some keys changed."""
    return read_details(write(folder, document(kind, **changes)))


def form(folder: Path, kind: str, **changes: Any) -> Form:
    """Return the form of a small file."""
    form_ = read(folder, kind, **changes).form
    assert isinstance(form_, Form)
    return form_


def attention(folder: Path, kind: str, **changes: Any) -> tuple[AttentionForm, ...]:
    """Return the forms of the attention of a small file's kinds."""
    return form(folder, kind, **changes).attention


def test_layers_with_a_window_turn_faster(tmp_path: Path) -> None:
    """Gemma 3's local base is that of windows, and its scaling is of the others."""
    scaling = {"rope_type": "linear", "factor": 8.0}
    window_layers, full_layers = attention(tmp_path, "gemma3_text", rope_scaling=scaling)
    assert window_layers.rope is not None
    assert full_layers.rope is not None
    assert (window_layers.rope.theta, window_layers.rope.divisor) == (
        100.0,
        window_layers.rope.turned,
    )
    assert (full_layers.rope.theta, full_layers.rope.divisor) == (1e4, 8.0)


def test_either_form_of_rotations_says_the_same(tmp_path: Path) -> None:
    """Bases by kind of layer may stand in rope_parameters."""
    inner = {
        "sliding_attention": {"rope_type": "default", "rope_theta": 100.0},
        "full_attention": {"rope_type": "default", "rope_theta": 1e4},
    }
    removed = {"rope_theta": ..., "rope_local_base_freq": ...}
    assert attention(tmp_path, "gemma3_text") == attention(
        tmp_path, "gemma3_text", rope_parameters=inner, **removed
    )


def test_llama_4_turns_in_chunks_alone(tmp_path: Path) -> None:
    """Layers that see all know no position, and later queries weigh more there."""
    chunked, full_layers = attention(tmp_path, "llama4_text")
    assert (chunked.rope is None, chunked.unit_norm, chunked.warmth) == (False, True, None)
    assert (full_layers.rope, full_layers.unit_norm, full_layers.warmth is None) == (
        None,
        False,
        False,
    )
    for disabled in (False, 0):
        assert (
            attention(tmp_path, "llama4_text", attn_temperature_tuning=disabled)[1].warmth is None
        )


def test_an_indexer_turns_halves_or_neighbours(tmp_path: Path) -> None:
    """DeepSeek V3.2's indexer turns halves, as attention does not; GLM's turns neighbours, too."""
    for kind, interleaved in (("deepseek_v32", False), ("glm_moe_dsa", True)):
        indexed = attention(tmp_path, kind)[0]
        assert indexed.rope is not None
        assert indexed.index_rope is not None
        assert (indexed.rope.interleaved, indexed.index_rope.interleaved) == (True, interleaved)


@pytest.mark.parametrize(
    ("kind", "changes", "message"),
    [
        ("gemma2", {"hidden_activation": "relu"}, "hidden_activation 'relu' is not run"),
        ("gemma2", {"use_bidirectional_attention": True}, "use_bidirectional_attention True"),
        ("gemma3_text", {"attn_logit_softcapping": 5.0}, "attn_logit_softcapping 5.0 is not run"),
        ("gpt_oss", {"rope_scaling": ...}, "rope_scaling or rope_parameters is missing"),
        ("gpt_oss", {"hidden_act": "relu"}, "hidden_act 'relu' is not run"),
        ("mistral4", {"rope_parameters": {"rope_theta": 1e4}}, "original_max_position_embeddings"),
        (
            "deepseek_v3", {"rope_scaling": {"partial_rotary_factor": 0.2}},
            "partial_rotary_factor 0.2 is not the share of 8 elements of 24",
        ),
        (
            "glm_moe_dsa", {"index_topk_pattern": "SFF"},
            "index_topk_pattern 'SFF' gives the first layer a selection that no earlier layer",
        ),
        (
            "gemma4_text", {"layer_types": [*["full_attention"] * 2, "sliding_attention"]},
            "ends with a window, and its class takes full_attention",
        ),
        ("deepseek_v2", {"norm_topk_prob": True}, "norm_topk_prob True is not what the model's"),
        ("deepseek_v2", {"topk_method": "noaux_tc"}, "topk_method 'noaux_tc' is not run"),
        ("deepseek_v3", {"scoring_func": "softmax"}, "scoring_func 'softmax' is not run"),
        ("deepseek_v3", {"topk_method": "greedy"}, "topk_method 'greedy' is not run"),
        ("deepseek_v3", {"n_group": 3}, "n_group 3 does not divide 16 experts"),
        ("mistral4", {"topk_group": 5}, "topk_group 5 of 4 groups does not hold 4"),
    ],
)  # fmt: skip
def test_an_unsupported_value_is_refused(
    tmp_path: Path, kind: str, changes: dict[str, Any], message: str
) -> None:
    """Another activation, router or rotation is refused with its key and value."""
    error = refusal(lambda: read(tmp_path, kind, **changes))
    assert error is not None
    assert message in error.what


def test_routers_are_read_by_family(tmp_path: Path) -> None:
    """Groups by their best or two best, biases of scores or logits, shares on inputs."""
    routers = {
        kind: read(tmp_path, kind).router
        for kind in ("deepseek_v2", "deepseek_v3", "mistral4", "gpt_oss", "llama4_text")
    }
    facts = {
        kind: rule
        and (rule.scores, rule.normalised, rule.groups, rule.expert_bias, bool(rule.by_best))
        for kind, rule in routers.items()
    }
    assert facts == {
        "deepseek_v2": ("softmax", False, 4, False, True),
        "deepseek_v3": ("sigmoid", True, 4, True, False),
        "mistral4": ("softmax", True, 4, False, False),
        "gpt_oss": ("softmax", True, 1, False, False),
        "llama4_text": ("sigmoid", False, 1, False, False),
    }
    biased = {kind for kind, rule in routers.items() if rule and rule.logit_bias}
    assert biased == {"gpt_oss"}
    assert {kind for kind, rule in routers.items() if rule and rule.on_inputs} == {"llama4_text"}
