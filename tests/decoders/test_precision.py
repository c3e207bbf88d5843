"""Precision: how each matrix of a checkpoint is stored, from the files that say it."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nearfree.core.precision import PLAIN
from nearfree.decoders.precision import CACHE, read_precision
from nearfree.decoders.stored.precision import StoredPrecision
from nearfree.errors import ConfigError, RefusedError

from decoders.files import SHIPPED, refusal, write
from decoders.quantised import (
    AWQ,
    BLOCK,
    BNB,
    CHANNEL,
    FOUR,
    FP8,
    GPTQ,
    INT4,
    LIST,
    MODELOPT,
    TOKEN,
    compressed,
    group,
)

LLAMA = {"model_type": "llama", "torch_dtype": "bfloat16"}
Q, UP = "model.layers.0.self_attn.q_proj", "model.layers.0.mlp.up_proj"
EXPERT, GATE = "model.layers.0.mlp.experts.3.up_proj", "model.layers.0.mlp.gate"
MXFP4 = {"quant_method": "mxfp4", LIST: ["model.layers.*.self_attn", "lm_head"]}
NORM, EMBEDDING = "model.layers.0.input_layernorm", "model.embed_tokens"


def read(folder: Path, section: dict[str, Any] | None, **options: Any) -> StoredPrecision:
    """Return the precision of a Llama with a quantisation."""
    extra = {} if section is None else {"quantization_config": section}
    return read_precision(write(folder, {**LLAMA, **extra, **options}, "config.json"))


def weights(precision: StoredPrecision, *names: str) -> list[str]:
    """Return what some matrices are stored in."""
    return [precision.of(name).weights for name in names]


UNQUANTISED = [path for path in SHIPPED if "quantization_config" not in path.read_text()]


@pytest.mark.parametrize("path", UNQUANTISED, ids=lambda path: path.stem)
def test_shipped_models_are_plain(path: Path) -> None:
    """A file without a quantisation is in its dtype throughout."""
    precision = read_precision(path)
    assert {precision.plain} == set(weights(precision, Q, EXPERT, GATE, "lm_head"))
    assert precision.of(Q).bits == 16
    assert precision.kv is None


@pytest.mark.parametrize(
    ("section", "stored"),
    [
        (BLOCK, ["float8_block", "float8_block", "bfloat16", "bfloat16"]),
        (AWQ, ["int4", "int4", "bfloat16", "bfloat16"]),
        ({**AWQ, "lm_head": True}, ["int4", "int4", "bfloat16", "int4"]),
        ({**GPTQ, "dynamic": {}}, ["int4", "int4", "bfloat16", "bfloat16"]),
        (
            {**GPTQ, "dynamic": {"-:.*attn.*": {}, "-:.*mlp\\.gate$": None}},
            ["bfloat16", "int4", "bfloat16", "bfloat16"],
        ),
        (
            {**GPTQ, "dynamic": {"-:model\\.layers\\.0\\..*experts": {}, "-:mlp": {}}},
            ["int4", "bfloat16", "bfloat16", "bfloat16"],
        ),
        (MXFP4, ["bfloat16", "mxfp4", "bfloat16", "bfloat16"]),
        (MODELOPT, ["nvfp4", "nvfp4", "bfloat16", "nvfp4"]),
        (
            {**MODELOPT, "ignore": ["lm_head", "*.self_attn*"]},
            ["bfloat16", "nvfp4", "bfloat16", "bfloat16"],
        ),
        (
            compressed(group(CHANNEL, TOKEN), ignore=["lm_head"]),
            ["float8", "float8", "bfloat16", "bfloat16"],
        ),
        (
            compressed(group(INT4, targets=["re:.*experts.*", "lm_head"])),
            ["bfloat16", "int4", "bfloat16", "int4"],
        ),
    ],
)
def test_each_method_leaves_out_its_own(
    tmp_path: Path, section: dict[str, Any], stored: list[str]
) -> None:
    """Norms and embeddings are never quantised, routers if named; methods differ on the LM head."""
    precision = read(tmp_path, section)
    assert weights(precision, Q, EXPERT, GATE, "lm_head") == stored
    assert weights(precision, NORM, EMBEDDING) == ["bfloat16", "bfloat16"]


@pytest.mark.parametrize(
    "router", ["mlp.gate.wg", "block_sparse_moe.router.layer", "router.proj", "moe.gate"]
)
def test_a_router_is_plain_whatever_it_is_called(tmp_path: Path, router: str) -> None:
    """Hunyuan's, Granite's, Gemma 4's and Step 3.5's are matrices in a gate or router."""
    for section in (GPTQ, BLOCK, compressed(group(INT4))):
        assert weights(read(tmp_path, section), f"model.layers.0.{router}") == ["bfloat16"]


@pytest.mark.parametrize("experts", ["block_sparse_moe.input_linear", "moe.up_proj"])
def test_experts_are_routed_whatever_they_are_called(tmp_path: Path, experts: str) -> None:
    """Granite's and Step 3.5's have no part `experts`; what every token passes is none of them."""
    name = f"model.layers.0.{experts}"
    shared = "model.layers.0.block_sparse_moe.shared_experts.up_proj"
    assert weights(read(tmp_path, MXFP4), name, shared) == ["mxfp4", "bfloat16"]
    with pytest.raises(RefusedError, match="engines differ"):
        read(tmp_path, {**BNB, "load_in_4bit": True}).of(name)


def test_a_router_that_is_named_is_quantised(tmp_path: Path) -> None:
    """A router that a file names goes before the rule."""
    precision = read(tmp_path, compressed(group(CHANNEL, TOKEN, targets=["re:.*gate$"])))
    assert weights(precision, GATE, Q) == ["float8", "bfloat16"]


def test_a_group_by_name_goes_before_the_class(tmp_path: Path) -> None:
    """A matrix that one group names and another has by class is in the first."""
    groups = group(CHANNEL, TOKEN), group(INT4, targets=[Q])
    assert weights(read(tmp_path, compressed(*groups)), Q, UP) == ["int4", "float8"]


@pytest.mark.parametrize(
    ("section", "name", "reason"),
    [
        (compressed(group(CHANNEL, TOKEN)), "lm_head", "does not say whether lm_head"),
        (compressed(group(INT4, targets=["re:.*q_proj"]), group(FOUR, targets=[Q])), Q,
         "2 schemes"),
        (compressed(group(INT4), ignore=["model.layers.0.mlp"]), UP, "only for some engines"),
        ({**AWQ, LIST: ["mlp.up"]}, UP, "only for some engines"),
        ({**MODELOPT, "ignore": ["backbone.layers.1.mixer"]}, Q, "lists backbone.layers, but"),
    ],
)  # fmt: skip
def test_a_matrix_that_files_leave_open_is_refused(
    tmp_path: Path, section: dict[str, Any], name: str, reason: str
) -> None:
    """What a file does not settle is refused where it is asked for, with the file's name."""
    precision = read(tmp_path, section)
    error = refusal(lambda: precision.of(name))
    assert isinstance(error, RefusedError)
    assert reason in str(error)
    assert str(tmp_path) in str(error)


def test_layers_that_differ_are_counted_and_refused_as_one(tmp_path: Path) -> None:
    """A layer that is left out is counted apart, and the scheme of all layers is refused."""
    section = {**BLOCK, LIST: ["model.layers.0.mlp.down_proj", "model.layers.3.mlp"]}
    precision, name = read(tmp_path, section), "model.layers.*.mlp.down_proj"
    counts = {scheme.weights: count for scheme, count in precision.each(name, range(10)).items()}
    assert counts == {"float8_block": 8, "bfloat16": 2}
    with pytest.raises(RefusedError, match="2 are bfloat16, 8 are float8_block"):
        precision.of(name, range(10))
    assert precision.of(name, range(4, 10)).weights == "float8_block"


ENTRIES = (
    "model.layers.1.mlp", "model.layers.0*", "*.experts.2.*", "re:.*experts.*", "experts",
    r"re:model\.layers\.\d+\.mlp\.experts\.1\..*", "model.layers.11.mlp.experts.3.up", "up",
)  # fmt: skip


@given(ignored=st.lists(st.sampled_from(ENTRIES), max_size=3, unique=True))
def test_counts_are_those_of_each_matrix(
    tmp_path_factory: pytest.TempPathFactory, ignored: list[str]
) -> None:
    """Matrices of numbered layers and experts are counted as if each were asked for."""
    precision = read(tmp_path_factory.mktemp("model"), {**FP8, LIST: ignored})
    layers, experts = range(12), range(5)
    schemes = [
        precision.of(f"model.layers.{layer}.mlp.experts.{expert}.up")
        for layer in layers
        for expert in experts
    ]
    expected = {scheme: schemes.count(scheme) for scheme in schemes}
    assert precision.each("model.layers.*.mlp.experts.*.up", layers, experts) == expected


def test_work_on_names_is_bounded(tmp_path: Path) -> None:
    """Ten million layers are counted where a list treats them alike, and refused where not."""
    layers = range(10**7)
    assert read(tmp_path, BLOCK).each("model.layers.*.up", layers)[
        read(tmp_path, BLOCK).of(UP)
    ] == len(layers)
    precision = read(tmp_path, {**BLOCK, LIST: ["model.layers.5.up"]})
    with pytest.raises(RefusedError, match="too many"):
        precision.each("model.layers.*.up", layers)


def test_groups_divide_the_inputs(tmp_path: Path) -> None:
    """Inputs that a group does not divide are refused; a block may hang over."""
    precision = read(tmp_path, AWQ)
    precision.fitting(UP, 1024)
    with pytest.raises(RefusedError, match="groups of 128, which do not divide the 1000"):
        precision.fitting(UP, 1000)
    read(tmp_path, BLOCK).fitting(UP, 1000)


@pytest.mark.parametrize("level", ["", "text_config", "thinker_config"])
@pytest.mark.parametrize("key", ["quantization_config", "compression_config"])
def test_a_section_is_found_at_each_level(tmp_path: Path, level: str, key: str) -> None:
    """A quantisation is read wherever in a file it stands."""
    section: dict[str, Any] = {key: BLOCK}
    document = {**LLAMA, **({level: section} if level else section)}
    assert weights(read_precision(write(tmp_path, document)), Q) == ["float8_block"]


def test_modelopts_own_file_is_read_beside(tmp_path: Path) -> None:
    """A config.json without a word on it is quantised as hf_quant_config.json says."""
    modelopt = {"quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8", "exclude_modules": ["lm_head"]}
    write(tmp_path, {"quantization": modelopt}, "hf_quant_config.json")
    precision = read(tmp_path, None)
    assert weights(precision, Q, "lm_head") == ["nvfp4", "bfloat16"]
    assert precision.kv == "float8"
    agreeing = {**MODELOPT, "ignore": ["lm_head"], "kv_cache_scheme": "FP8"}
    assert read(tmp_path, agreeing) == precision


@pytest.mark.parametrize(
    ("section", "differs"),
    [
        (BLOCK, "the dtype of the cache, the scheme, what is left out, the LM head"),
        ({**MODELOPT, "kv_cache_scheme": "FP8"}, "in what is left out"),
    ],
)
def test_files_that_differ_are_refused(
    tmp_path: Path, section: dict[str, Any], differs: str
) -> None:
    """Two sections that say different things are refused with what differs."""
    modelopt = {"quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8", "exclude_modules": ["lm_head"]}
    write(tmp_path, {"quantization": modelopt}, "hf_quant_config.json")
    with pytest.raises(RefusedError, match=differs):
        read(tmp_path, section)


def test_levels_that_differ_are_refused(tmp_path: Path) -> None:
    """A section of the text's part that differs from the whole's is refused."""
    with pytest.raises(RefusedError, match="in the scheme"):
        read(tmp_path, BLOCK, text_config={"quantization_config": FP8})


@pytest.mark.parametrize("name", ["quantize_config.json", "quant_config.json"])
def test_a_quantisation_in_a_file_that_is_not_read_is_refused(tmp_path: Path, name: str) -> None:
    """A file of GPTQ or AWQ beside a config.json that says nothing is not passed over."""
    write(tmp_path, {"bits": 4}, name)
    with pytest.raises(RefusedError, match="and config"):
        read(tmp_path, None)


def test_files_that_differ_on_products_store_the_same(tmp_path: Path) -> None:
    """Where the cache or the activations differ the weights are known, and the cache the wider."""
    modelopt = {"quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8", "exclude_modules": ["lm_head"]}
    write(tmp_path, {"quantization": modelopt}, "hf_quant_config.json")
    section = {**MODELOPT, "quant_algo": "W4A16_NVFP4", "ignore": ["lm_head"]}
    precision = read(tmp_path, section)
    assert weights(precision, Q) == ["nvfp4"]
    assert precision.kv is None
    (refusal,) = precision.refusals
    assert "in the dtype of the cache, the scheme" in refusal.reason
    (refusal,) = read(tmp_path, {**section, "quant_algo": "NVFP4"}).refusals
    assert refusal.reason.endswith("in the dtype of the cache")
    assert refusal.key.endswith(CACHE)
    assert "--kv-dtype" in refusal.remedy


V4 = {"model_type": "deepseek_v4", "expert_dtype": "fp4"}
W1, WQ_B = "layers.1.ffn.experts.7.w1", "layers.1.attn.wq_b"


def test_deepseek_v4_stores_its_experts_apart(tmp_path: Path) -> None:
    """`expert_dtype` fp4 is MXFP4 for routed experts, fp8 the same as all else; silence is neither.

    Compressors, the router and what mixes streams are plain.
    """
    plain_names = [
        "layers.1.attn.compressor.wkv",
        "layers.1.ffn.gate",
        "layers.1.hc_ffn_fn",
        "head",
    ]
    fp4 = read(tmp_path, BLOCK, **V4)
    assert weights(fp4, W1, WQ_B) == ["mxfp4", "float8_block"]
    assert weights(fp4, *plain_names) == ["bfloat16"] * 4
    fp8 = read(tmp_path, BLOCK, **{**V4, "expert_dtype": "fp8"})
    assert weights(fp8, W1, WQ_B) == ["float8_block"] * 2
    for expert_dtype, reason in ((None, "engines default to fp4"), ("fp6", "is none of fp4, fp8")):
        with pytest.raises(RefusedError, match=reason):
            read(tmp_path, BLOCK, **{**V4, "expert_dtype": expert_dtype})


def test_nvfp4_experts_of_an_fp8_checkpoint(tmp_path: Path) -> None:
    """ModelOpt's file beside speaks of the experts alone, and all else is still FP8."""
    layers = {"layers.1.ffn.experts": {"quant_algo": "NVFP4", "group_size": 16}}
    quantisation = {"quant_algo": "MIXED_PRECISION", "quantized_layers": layers}
    left_out = ["*.attn.*", "head"]
    section = {**BLOCK, "moe_quant_algo": "NVFP4", **quantisation, "ignore": left_out}
    write(
        tmp_path,
        {"quantization": {**quantisation, "exclude_modules": left_out}},
        "hf_quant_config.json",
    )
    precision = read(tmp_path, section, **V4)
    assert weights(precision, W1, WQ_B) == ["nvfp4", "float8_block"]
    assert not precision.refusals
    with pytest.raises(RefusedError, match="is not read for this model type"):
        read(tmp_path, section)
    write(tmp_path, {"quantization": {"quant_algo": "NVFP4"}}, "hf_quant_config.json")
    with pytest.raises(RefusedError, match="in the scheme, the schemes by name"):
        read(tmp_path, section, **V4)


def test_the_format_of_bitsandbytes_experts_is_refused(tmp_path: Path) -> None:
    """Some releases leave experts unquantised, so their stored format is refused."""
    precision = read(tmp_path, {**BNB, "load_in_4bit": True})
    assert weights(precision, Q, "lm_head") == ["int4", "bfloat16"]
    with pytest.raises(RefusedError, match="engines differ"):
        precision.of("model.layers.0.mlp.experts.0.up_proj")


@pytest.mark.parametrize(
    "options", [{"quantization": {"bits": 4}}, {"expert_dtype": "fp4"}, {"text_config": 3}]
)
def test_other_keys_of_a_quantisation_are_refused(tmp_path: Path, options: dict[str, Any]) -> None:
    """A key that says that weights are stored otherwise is never passed over."""
    with pytest.raises(RefusedError, match=next(iter(options))):
        read(tmp_path, None, **options)


@pytest.mark.parametrize("dtype", PLAIN)
def test_the_dtype_is_what_the_file_says(tmp_path: Path, dtype: str) -> None:
    """Under either key and in the text's part, the dtype is read."""
    text = {"model_type": "llama", "text_config": {"dtype": dtype}}
    assert read_precision(write(tmp_path, text)).plain == dtype
    thinker = {"model_type": "qwen2_5_omni", "thinker_config": {"torch_dtype": dtype}}
    assert read_precision(write(tmp_path, thinker)).plain == dtype
    assert read_precision(write(tmp_path, {**thinker, "thinker_config": text})).plain == dtype
    assert read(tmp_path, None, torch_dtype=dtype).plain == dtype


def test_a_missing_dtype_is_taken_from_the_method_alone(tmp_path: Path) -> None:
    """What fp8 and mxfp4 leave out is bfloat16; nothing else is taken for it by silence."""
    for section in (BLOCK, MXFP4):
        assert read(tmp_path, section, torch_dtype=None).plain == "bfloat16"
    for without_dtype in (None, AWQ, MODELOPT):
        with pytest.raises(RefusedError, match="dtype or torch_dtype is missing"):
            read(tmp_path, without_dtype, torch_dtype=None)


@pytest.mark.parametrize("dtype", ["auto", "float8_e4m3fn", "int4", 3])
def test_other_dtypes_are_refused(tmp_path: Path, dtype: object) -> None:
    """A dtype that is none of a plain model is refused, and so are two that differ."""
    with pytest.raises(RefusedError, match="torch_dtype"):
        read(tmp_path, None, torch_dtype=dtype)
    with pytest.raises(RefusedError, match="differs between levels"):
        read(tmp_path, None, text_config={"dtype": "float16"})


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 300) | st.sampled_from(["FP8", "float", "re:.*"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["weights", "targets", "type", "num_bits", "group_size", "a"]), inner
        )
    ),
    max_leaves=8,
)


@given(
    section=st.sampled_from([BLOCK, AWQ, MODELOPT, MXFP4, compressed(group(INT4))]),
    key=st.sampled_from(
        ["quant_method", "bits", "group_size", "quant_algo", "ignore", "config_groups", LIST,
         "weight_block_size", "kv_cache_scheme", "quantized_layers", "zero_point", "format"]
    ),
    value=JSON,
)  # fmt: skip
def test_any_value_is_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, section: dict[str, Any], key: str, value: object
) -> None:
    """No value of a key is a fault of the program: a file is read, or refused as one."""
    folder = tmp_path_factory.mktemp("model")
    try:
        precision = read(folder, {**section, key: value})
    except ConfigError:
        return
    quantised = precision.quantised
    assert quantised.others or quantised.named or quantised.routed
