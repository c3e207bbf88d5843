"""Model files: everything that is read of them, supported or not."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import structs
from nearfree.core.precision import ELEMENT_BYTES, Dtype, Override, Product, uniform
from nearfree.decoders.model_file import read_model_file
from nearfree.decoders.ranks.attention_uses import LAYER, OUTPUT, QKV, state_role
from nearfree.decoders.weights import stored

from decoders.files import SMALL, change, parameters, weights_bytes, write

FP8 = {"quant_method": "fp8", "activation_scheme": "dynamic", "weight_block_size": [128, 128]}
NVFP4 = {"quantization": {"quant_algo": "NVFP4", "group_size": 16, "exclude_modules": ["lm_head"]}}
STATES = {
    "model_type": "deepseek_v3", "torch_dtype": "bfloat16", "vocab_size": 512, "hidden_size": 64,
    "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 4,
    "intermediate_size": 128, "moe_intermediate_size": 32, "n_routed_experts": 8,
    "n_shared_experts": 1, "num_experts_per_tok": 2, "first_k_dense_replace": 1,
    "kv_lora_rank": 16, "q_lora_rank": 32, "qk_rope_head_dim": 8, "qk_nope_head_dim": 16,
    "v_head_dim": 16, "n_group": 1, "topk_group": 1, "tie_word_embeddings": False,
    "full_attention_interval": 4,
}  # fmt: skip


@pytest.mark.parametrize("kind", sorted(SMALL))
def test_a_plain_file_is_in_its_dtype_throughout(tmp_path: Path, kind: str) -> None:
    """Without a word of quantisation every weight has the file's dtype, and all are counted.

    So has the cache, but for DeepSeek V4's, which engines keep in FP8.
    """
    path = write(tmp_path, SMALL[kind])
    file = read_model_file(path)
    assert file.refusals == file.mixed == ()
    kv: Dtype = "float8" if "compress_ratios" in SMALL[kind] else "bfloat16"
    assert file.precision == structs.replace(uniform("bfloat16"), kv=kv)
    assert file.decoder is not None
    assert parameters(file) == parameters(stored(path))
    assert weights_bytes(file) == 2 * parameters(file)


def test_quantised_weights_are_not_plain(tmp_path: Path) -> None:
    """A block-wise FP8 file has FP8 products, and a plain LM head and embedding."""
    file = read_model_file(write(tmp_path, change("qwen3", quantization_config=FP8)))
    assert file.precision is not None
    assert file.precision.ffn == file.precision.attention
    assert file.precision.ffn == Product("float8_block", "float8_block")
    assert file.precision.lm_head == Product("bfloat16", "bfloat16")
    bytes_by_kind = {weight.kind: weight.size_bytes / weight.elements for weight in file.weights}
    assert bytes_by_kind["embedding"] == bytes_by_kind["lm_head"] == 2
    assert bytes_by_kind["ffn"] == ELEMENT_BYTES["float8_block"]
    assert weights_bytes(file) < 2 * parameters(file)


def test_a_file_beside_is_read(tmp_path: Path) -> None:
    """ModelOpt's hf_quant_config.json makes a file of bf16 one of NVFP4."""
    path = write(tmp_path, SMALL["llama"], "config.json")
    assert read_model_file(path).precision == uniform("bfloat16")
    write(tmp_path, NVFP4, "hf_quant_config.json")
    precision = read_model_file(path).precision
    assert precision is not None
    assert precision.ffn == Product("nvfp4", "nvfp4")


def test_a_method_of_experts_says_nothing_of_a_model_without(tmp_path: Path) -> None:
    """mxfp4 quantises routed experts: a dense model by it is refused until its format is named."""
    section = {"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]}
    (refusal,) = read_model_file(
        write(tmp_path, change("qwen3", quantization_config=section))
    ).mixed
    assert refusal.key == "quant_method"
    assert "the model has none" in refusal.reason
    assert refusal.remedy.startswith("Name what its weights are in, such as --dtype bfloat16")
    sparse = read_model_file(write(tmp_path, change("gpt_oss", quantization_config=section)))
    assert sparse.mixed == ()
    assert sparse.precision is not None
    assert sparse.precision.experts == Product("mxfp4", "bfloat16")


@pytest.mark.parametrize(
    ("left_out", "plain"),
    [
        (["model.layers.6*"], True),
        (["mtp*"], True),
        (["mtp.layers.0*"], True),
        (["lm_head", "model.layers.1*"], False),
        (["model.layers.6.self_attn.q_proj"], False),
    ],
)
def test_the_layer_for_further_tokens_may_be_left_plain(
    tmp_path: Path, left_out: list[str], *, plain: bool
) -> None:
    """Its name is that of a layer behind the last, or one of its own, and all of it is left out."""
    section = {"quant_method": "modelopt", "quant_algo": "NVFP4", "group_size": 16}
    file = read_model_file(
        write(tmp_path, change("qwen3", quantization_config={**section, "ignore": left_out}))
    )
    assert file.layers == 6
    assert file.drafts_plain is plain


def test_contradicting_files_are_refused_with_every_reason(tmp_path: Path) -> None:
    """A config that says FP8 beside one that says NVFP4 has no precision, and neither forward."""
    path = write(tmp_path, STATES | {"quantization_config": FP8}, "config.json")
    write(tmp_path, NVFP4, "hf_quant_config.json")
    file = read_model_file(path)
    assert file.precision is None
    keys = [refusal.key for refusal in file.refusals]
    assert "full_attention_interval" in keys
    assert file.decoder is None
    assert any(refusal.file.endswith("hf_quant_config.json") for refusal in file.refusals)


@pytest.mark.parametrize("kind", ["nanbeige", "lama"])
def test_an_unsupported_model_type_is_one_reason(tmp_path: Path, kind: str) -> None:
    """Neither its forward nor what it stores is known, and one reason says so."""
    file = read_model_file(write(tmp_path, change("llama", model_type=kind)))
    assert [refusal_.key for refusal_ in file.refusals] == ["model_type"]
    assert file.weights == ()


def test_what_is_stored_is_known_of_a_refused_forward(tmp_path: Path) -> None:
    """A model with layers of a state is refused, and its weights and precision are known."""
    file = read_model_file(write(tmp_path, STATES | {"quantization_config": FP8}))
    assert file.decoder is None
    assert parameters(file) > 0
    assert file.precision is not None
    assert file.precision.named_formats(file.main)["weights"] == "float8_block"


def test_layers_left_out_are_reported(tmp_path: Path) -> None:
    """A kind that one layer has plain is in two formats: it is said, bytes are right."""
    left_out = FP8 | {"modules_to_not_convert": ["model.layers.0.mlp.down_proj"]}
    all_quantised = read_model_file(write(tmp_path, change("llama", quantization_config=FP8)))
    partly_quantised = read_model_file(
        write(tmp_path, change("llama", quantization_config=left_out))
    )
    (refusal,) = partly_quantised.mixed
    assert "ffn in several formats" in refusal.reason
    assert partly_quantised.precision == all_quantised.precision
    extra_bytes = 64 * 96 * (2 - ELEMENT_BYTES["float8_block"])
    assert weights_bytes(partly_quantised) - weights_bytes(all_quantised) == pytest.approx(
        extra_bytes
    )


def test_products_of_attention_have_formats_of_their_own(tmp_path: Path) -> None:
    """An output projection alone in another format is no mixture: its role has that format."""
    left_out = FP8 | {"modules_to_not_convert": ["q_proj", "k_proj", "v_proj"]}
    file = read_model_file(write(tmp_path, change("llama", quantization_config=left_out)))
    assert file.mixed == ()
    assert file.precision is not None
    (quantised,) = {file.precision.formats_of("ffn", "Dense FFN")}
    assert quantised.weights == "float8_block"
    formats = {role: file.precision.formats_of("attention", role).weights for role in (QKV, OUTPUT)}
    assert formats == {QKV: "bfloat16", OUTPUT: "float8_block"}
    assert [role for role, _ in file.precision.roles] in ([OUTPUT], [QKV])


def test_one_product_in_two_formats_is_a_mixture(tmp_path: Path) -> None:
    """A query that is plain beside a key that is not are one product, which has no such kernel."""
    left_out = FP8 | {"modules_to_not_convert": ["q_proj"]}
    file = read_model_file(write(tmp_path, change("llama", quantization_config=left_out)))
    (refusal,) = file.mixed
    assert f"stores {QKV} in several formats" in refusal.reason


def test_layers_of_a_product_may_have_formats_of_their_own(tmp_path: Path) -> None:
    """Layers whose attention is left out are known apart, each product of theirs in one format."""
    names = [
        f"model.layers.{layer}.self_attn.{name}"
        for layer in (1, 4)
        for name in ("q_proj", "k_proj", "v_proj")
    ]
    left_out = FP8 | {"modules_to_not_convert": names}
    file = read_model_file(write(tmp_path, change("llama", quantization_config=left_out)))
    assert (file.mixed, file.refusals) == ((), ())
    assert file.precision is not None
    plain_formats, quantised = ("bfloat16", "bfloat16"), ("float8_block", "float8_block")
    assert file.precision.apart == ((QKV, plain_formats, (1, 4)),)
    assert file.precision.formats_of("attention", QKV) == quantised
    assert [(of_layers.formats_of("attention", QKV), layers) for of_layers, layers in
            file.precision.split_by_format(QKV, tuple(range(6)))] == [
        (quantised, (0, 2, 3, 5)), (plain_formats, (1, 4)),
    ]  # fmt: skip
    overridden = Override(weights="float8", activations="float8").apply(file.precision)
    assert {
        of_layers.formats_of("attention", QKV)
        for of_layers, _ in overridden.split_by_format(QKV, (0, 1))
    } == {("float8", "float8")}
    section = FP8 | {"modules_to_not_convert": ["model.layers.1.self_attn.q_proj"]}
    (refusal,) = read_model_file(
        write(tmp_path, change("llama", quantization_config=section))
    ).mixed
    assert f"stores {QKV} in several formats" in refusal.reason


def test_what_is_absorbed_is_no_mixture(tmp_path: Path) -> None:
    """What widens a latent is taken out of its format as it is loaded, whatever that is."""
    left_out = FP8 | {"modules_to_not_convert": ["kv_b_proj"]}
    shape = change("deepseek_v3", quantization_config=left_out, hidden_size=256)
    file = read_model_file(write(tmp_path, shape))
    assert file.mixed == ()
    assert file.precision is not None
    assert file.precision.roles == ()


def test_a_layer_of_entries_has_one_format(tmp_path: Path) -> None:
    """Compressors stay plain beside FP8 products, which is no mixture; two formats of these are.

    Its cache is FP8 where no file says another.
    """
    options = {"quantization_config": FP8, "expert_dtype": "fp4", "moe_intermediate_size": 64}
    shape = change("deepseek_v4", **options)
    file = read_model_file(write(tmp_path, shape))
    assert file.mixed == file.refusals == ()
    assert file.precision is not None
    assert file.precision.formats_of("attention", LAYER) == ("float8_block", "float8_block")
    assert (file.precision.experts.weights, file.precision.kv) == ("mxfp4", "float8")
    section = FP8 | {"modules_to_not_convert": ["wo_b"]}
    file_ = read_model_file(write(tmp_path, shape | {"quantization_config": section}))
    (refusal,) = file_.mixed
    assert f"stores {LAYER} in several formats" in refusal.reason


@given(st.sampled_from(["float8", "int4", "nvfp4", "mxfp4", "float32", "float16"]))
def test_other_weights_have_other_bytes(weights: Any) -> None:
    """Asked for in another format, a model takes that format's bytes where engines quantise."""
    file = read_model_file(Path(__file__).parents[2] / "config" / "models" / "qwen3_8b.json")
    assert file.precision is not None
    precision = Override(weights=weights).apply(file.precision)
    expected = sum(
        weight.elements
        * (
            ELEMENT_BYTES[getattr(precision, weight.kind).weights]
            if hasattr(precision, weight.kind)
            else 2
        )
        for weight in file.weights
    )
    assert weights_bytes(file, precision) == pytest.approx(expected)


@pytest.mark.parametrize("model_type", ["falcon_h1", "kimi_linear", "nemotron_h", "qwen3_next"])
def test_products_about_a_state_take_the_format_of_attention(
    tmp_path: Path, model_type: str
) -> None:
    """Asked for in another format they have its bytes; what else a state needs stays as it is."""
    path = write(tmp_path, change(model_type))
    file = read_model_file(path)
    assert file.precision is not None
    precision = Override(weights="float8").apply(file.precision)
    bytes_by_kind = {
        kind: sum(weight.size_bytes for weight in file.stored(precision) if weight.kind == kind)
        for kind in ("attention", "state")
    }
    all_weights = [weight for weight in stored(path).weights if weight.kind in bytes_by_kind]
    products = [
        weight for weight in all_weights if weight.kind == "attention" or state_role(weight.name)
    ]
    assert any(weight.kind == "state" for weight in products)
    quantised, total = (
        sum(weight.elements for weight in group) for group in (products, all_weights)
    )
    assert bytes_by_kind == {"attention": quantised, "state": 2 * (total - quantised)}


def test_a_model_without_experts_may_say_so(tmp_path: Path) -> None:
    """Granite 4's dense models send a token to 0 of 0 experts, and all is known of them."""
    dense = {"num_local_experts": 0, "num_experts_per_tok": 0}
    file = read_model_file(write(tmp_path, change("granitemoehybrid", **dense)))
    assert (file.refusals, file.experts) == ((), 1)
    assert file.decoder is not None
    assert file.decoder.experts is None


def test_what_memory_alone_asks_for_is_refused_as_all_else(tmp_path: Path) -> None:
    """A key that no forward of the model needs is a reason, too, and no memory is said."""
    file = read_model_file(write(tmp_path, change("llama", num_experts_per_tok="two")))
    assert [refusal_.key for refusal_ in file.refusals] == ["num_experts_per_tok"]
    assert file.decoder is not None
    assert (file.weights, file.cache) == ((), ())


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 10**9) | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=5,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(kind=st.sampled_from(["qwen3", "glm4_moe"]), data=st.data())
def test_any_value_is_read_or_refused(tmp_path: Path, kind: str, data: st.DataObject) -> None:
    """Whatever a key holds, the file is read or refused by words, never by a traceback."""
    keys = [*SMALL[kind], "quantization_config", "text_config", "dtype", "layer_types"]
    key = data.draw(st.sampled_from(keys))
    document = SMALL[kind] | {key: data.draw(_VALUES)}
    path = tmp_path / "small.json"
    path.write_text(json.dumps(document), encoding="utf-8")
    file = read_model_file(path)
    assert file.decoder is not None or file.refusals


@pytest.mark.parametrize("kind", ["link", "folder", "fifo", "binary"])
def test_a_file_beside_that_is_none_is_refused(tmp_path: Path, kind: str) -> None:
    """An unreadable hf_quant_config.json is a reason for refusal, not ignored."""
    path = write(tmp_path, SMALL["llama"], "config.json")
    companion = tmp_path / "hf_quant_config.json"
    if kind == "link":
        companion.symlink_to(tmp_path / "gone.json")
    elif kind == "folder":
        companion.mkdir()
    elif kind == "fifo":
        os.mkfifo(companion)
    else:
        companion.write_bytes(b"\xff\xfe\x00")
    file = read_model_file(path)
    assert [(refusal_.file, refusal_.key) for refusal_ in file.refusals] == [(str(companion), "")]
    assert not file.weights
