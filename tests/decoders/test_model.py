"""A model in a plan: what its digest depends on, and how a setting finds it there."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from nearfree.core.setting import Setting
from nearfree.decoders.model import Model, model_of
from nearfree.errors import ConfigError
from whole_models import DENSE, LING, MOE, as_model, config, small

KINDS = (DENSE, MOE, LING)
MODELS = {kind: small(kind) for kind in KINDS}
by_kind = pytest.mark.parametrize("kind", KINDS)


def make_setting(source: Model, **changes: Any) -> Setting:
    """Return a setting of a model."""
    fields: dict[str, Any] = {
        "module": "model",
        "backend": "torch_sdpa",
        "dtype": "float32",
        "model": "small",
        "model_digest": source.digest,
    }
    return Setting(**(fields | changes))


@given(st.sampled_from(KINDS), st.randoms(use_true_random=False))
def test_the_order_of_keys_does_not_matter(kind: str, order: Any) -> None:
    """A file with its keys in any order gives the same digest."""
    items = list(config(kind).items())
    order.shuffle(items)
    assert as_model(dict(items)).digest == MODELS[kind].digest


@by_kind
@pytest.mark.parametrize(
    "extra", [{"transformers_version": "5.0"}, {"use_cache": False}, {"note": "any text"}]
)
def test_a_key_that_no_forward_reads_does_not_matter(kind: str, extra: dict[str, Any]) -> None:
    """What a file says besides changes no digest, so no take is repeated for it."""
    assert as_model(config(kind) | extra).digest == MODELS[kind].digest


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        (DENSE, {"hidden_size": 128}),
        (DENSE, {"num_hidden_layers": 4}),
        (DENSE, {"vocab_size": 98}),
        (DENSE, {"intermediate_size": 97}),
        (DENSE, {"num_attention_heads": 4}),
        (DENSE, {"num_key_value_heads": 4}),
        (DENSE, {"head_dim": 32}),
        (DENSE, {"torch_dtype": "float32"}),
        (DENSE, {"rms_norm_eps": 1e-5}),
        (DENSE, {"rope_theta": 20000.0}),
        (DENSE, {"attention_bias": True}),
        (DENSE, {"tie_word_embeddings": True}),
        ("mistral", {"sliding_window": 9}),
        (MOE, {"num_experts": 8}),
        (MOE, {"num_experts_per_tok": 2}),
        (MOE, {"moe_intermediate_size": 32}),
        (MOE, {"norm_topk_prob": False}),
        (LING, {"num_shared_experts": 1}),
        (LING, {"routed_scaling_factor": 1.0}),
        (LING, {"topk_group": 3}),
        (LING, {"first_k_dense_replace": 2}),
    ],
    ids=str,
)
def test_what_a_forward_depends_on_is_in_the_digest(kind: str, change: dict[str, Any]) -> None:
    """Each key that changes a forward, or how large it is, changes the digest."""
    assert small(kind, **change).digest != small(kind).digest


@by_kind
def test_plain_survives_json(kind: str) -> None:
    """What a plan carries is data of JSON, and reads back as the same model."""
    model = MODELS[kind]
    decoded = json.loads(json.dumps(model.plain))
    assert decoded == model.plain
    assert msgspec.convert(decoded, Model) == model
    assert msgspec.convert(decoded, Model).digest == model.digest


@by_kind
def test_a_setting_finds_its_model(kind: str) -> None:
    """The model of a setting is the one in the plan, with its own k where the setting has none."""
    model = MODELS[kind]
    assert model_of(make_setting(model), {"other": {}, "small": model.plain}) == model


def test_a_settings_k_is_in_its_model() -> None:
    """A setting's k takes the place of the file's; nothing else of the model changes."""
    model = MODELS[MOE]
    with_k = model_of(make_setting(model, top_k=7), {"small": model.plain})
    assert with_k == model.with_top_k(7)
    assert with_k.decoder.experts is not None
    assert with_k.decoder.experts.top_k == 7
    assert with_k.with_top_k(4) == model


@pytest.mark.parametrize(
    "models",
    [{}, {"other": MODELS[DENSE].plain}, {"small": {}}, {"small": MODELS[DENSE].plain | {"x": 1}}],
    ids=["nothing", "another", "empty", "damaged"],
)
def test_a_missing_model_is_refused(models: dict[str, Any]) -> None:
    """A plan without a setting's model, or with what is none, is refused by the model's name."""
    with pytest.raises(ConfigError, match="does not hold the model small") as error:
        model_of(make_setting(MODELS[DENSE]), models)
    assert "nearfree plan" in error.value.remedy


def test_a_setting_without_a_model_is_refused() -> None:
    """A setting that names no model finds none."""
    with pytest.raises(ConfigError, match="does not hold the model None"):
        model_of(make_setting(MODELS[DENSE], model=None), {"small": MODELS[DENSE].plain})


def test_another_model_of_the_name_is_refused() -> None:
    """What was asked of one model is never run on another one of its name."""
    other_model = small(num_hidden_layers=4)
    with pytest.raises(ConfigError, match="model small is not that of its setting"):
        model_of(make_setting(MODELS[DENSE]), {"small": other_model.plain})


def test_k_needs_experts() -> None:
    """A model without experts has no k, and one with experts at most as many a token."""
    assert MODELS[DENSE].with_top_k(None) is MODELS[DENSE]
    with pytest.raises(ConfigError, match="small has no experts, of which a token could take 2"):
        MODELS[DENSE].with_top_k(2)
    with pytest.raises(ConfigError, match="top_k 17 is larger than the 16 experts") as error:
        MODELS[MOE].with_top_k(17)
    assert error.value.remedy == "Choose 16 at most"


@pytest.mark.parametrize(("kind", "choice"), [(DENSE, 0), (MOE, 16), (LING, 8)])
def test_a_router_chooses_from_the_groups_it_keeps(kind: str, choice: int) -> None:
    """A token's experts are chosen from those of the kept groups: all where there is one group."""
    assert MODELS[kind].choice == choice


def test_a_model_without_a_forward_is_refused() -> None:
    """A model type that is only predicted cannot be measured, and its file says so."""
    with pytest.raises(ConfigError, match="it has no forward here"):
        small("granite")
