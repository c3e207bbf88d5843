"""A config.json that is refused: values, keys, model types and paths, each by name."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from nearfree.decoders.config_file import read_decoder
from nearfree.decoders.details import read_details
from nearfree.decoders.layouts.families import FAMILIES, UNREAD
from nearfree.decoders.model_file import read_model_file
from nearfree.decoders.text_part import COMPOSITES
from nearfree.errors import ConfigError, RefusedError

from decoders.files import CONFIG, DEFAULTED, SMALL, VALUES, change, refusal, write
from decoders.stored_files import STORED
from decoders.test_config_file import read


@given(st.data())
@settings(max_examples=400, deadline=None)
def test_a_wrong_value_of_any_key_is_refused_by_name(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Whatever a key holds, the file is read or refused by its name; a shape's key by its own."""
    folder = tmp_path_factory.getbasetemp()
    kind = data.draw(st.sampled_from(sorted(SMALL)))
    key = data.draw(st.sampled_from(sorted(SMALL[kind])))
    value = data.draw(VALUES)
    path = write(folder, change(kind, **{key: value}))
    error = refusal(lambda: read_decoder(path))
    number = type(value) is int and -1 <= value <= 10**7
    if error is None:
        unchanged = value == SMALL[kind][key] or (key == "model_type" and value in SMALL)
        equivalent = kind == "hunyuan_v1_moe" and isinstance(value, list) and len(value) == 1
        equivalent = equivalent or (kind == "mpt" and value == {})  # its section's own defaults
        equivalent = equivalent or (type(value) is bool and type(SMALL[kind][key]) is bool)
        assert number or unchanged or equivalent or (value is None and (kind, key) in DEFAULTED)
    else:
        assert str(path) in error.what
        assert number or re.search(rf"(: |\n  )(\w+ or )?{key}\b| is not JSON", error.what)


def test_a_missing_key_is_named(tmp_path: Path) -> None:
    """No key that decides the work has a value that the file does not say."""
    needed = [(kind, key) for kind in SMALL for key in SMALL[kind] if (kind, key) not in DEFAULTED]
    for kind, key in needed:
        path = write(tmp_path, change(kind, **{key: ...}))
        error = refusal(lambda path=path: read_decoder(path))
        assert error, f"{kind} is read without {key}"
        pattern = rf"{path}: (\w+ or )?{key}( or \w+)? is missing"
        assert re.fullmatch(pattern, error.what), kind


@pytest.mark.parametrize(
    ("kind", "changes", "thing"),
    [
        ("llama", {"text_config": {}}, "text_config"),
        ("bailing_moe", {"kv_lora_rank": 512}, "kv_lora_rank 512"),
        ("bailing_moe", {"layer_group_size": 5}, "layer_group_size 5"),
        (
            "llama",
            {"draft_vocab_size": 32000},
            "draft_vocab_size 32000 says that it is the head of",
        ),
        ("llama", {"architectures": ["LlamaForCausalLMEagle3"]}, "is the head of a drafter"),
        ("llama", {"mamba_d_state": 256}, "mamba_d_state 256 says that some layers keep a state"),
        (
            "qwen3",
            {"dflash_config": {"mask_token_id": 5, "target_layer_ids": [1, 3]}},
            "dflash_config {...} says that it drafts a block of tokens in one run",
        ),
        (
            "qwen2",
            {"dual_chunk_attention_config": {"chunk_size": 262144, "local_size": 8192}},
            "dual_chunk_attention_config {...} says that attention sees chunks",
        ),
        ("llama", {"is_encoder_decoder": True}, "is_encoder_decoder True"),
        ("llama", {"model_type": "lama"}, "model_type 'lama'"),
        (
            "llama",
            {"model_type": "jamba"},
            "first version, which engines advance by one position of a",
        ),
        ("llama", {"torch_dtype": "float8_e4m3fn"}, "torch_dtype 'float8_e4m3fn'"),
        ("llama", {"torch_dtype": "auto"}, "torch_dtype 'auto'"),
        ("llama", {"dtype": "float16"}, "dtype 'float16' differs from torch_dtype"),
        ("llama", {"num_key_value_heads": 3}, "num_key_value_heads 3 does not divide"),
        ("llama", {"hidden_size": 65}, "hidden_size 65 is no multiple"),
        ("llama", {"sliding_window": 4096}, "sliding_window 4096"),
        ("llama", {"layer_types": ["full_attention"]}, "layer_types"),
        ("llama", {"layer_types": ["full_attention"] * 5 + ["mamba"]}, "'mamba'"),
        ("mistral", {"sliding_window": 8, "layer_types": ["full_attention"] * 6}, "layer_types"),
        ("mixtral", {"num_experts_per_tok": 5}, "num_experts_per_tok 5 is larger"),
        ("qwen3_moe", {"mlp_only_layers": [True]}, "mlp_only_layers [...] is no list"),
        ("llama", {"is_encoder_decoder": "no"}, "is_encoder_decoder 'no'"),
        ("mixtral", {"num_experts": 5}, "differs from num_experts"),
        ("qwen2", {"use_sliding_window": True, "max_window_layers": 3}, "max_window_layers 3"),
        ("qwen2", {"use_sliding_window": True, "max_window_layers": 0}, "sliding_window is miss"),
        ("qwen3_moe", {"use_sliding_window": True}, "use_sliding_window True"),
        ("bailing_moe", {"moe_shared_expert_intermediate_size": 48}, "moe_shared_expert"),
    ],
)
def test_unknown_values_are_refused_by_name(
    tmp_path: Path, kind: str, changes: dict[str, Any], thing: str
) -> None:
    """A value that changes the work and is not supported is named, never ignored."""
    with pytest.raises(ConfigError, match=r"small\.json: ") as error:
        read(tmp_path, change(kind, **changes))
    assert thing in error.value.what


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_key_value_heads": 3}, "num_key_value_heads 3 does not divide"),
        ({"num_experts_per_tok": 17}, "num_experts_per_tok 17 is larger than num_experts 16"),
        ({"model_type": "qwen4_moe"}, "model_type 'qwen4_moe' is not read"),
        ({"hidden_size": ...}, "hidden_size is missing"),
        ({"hidden_size": "a\nb"}, r"hidden_size 'a\nb' is no whole number"),
        ({"model_type": "a\nb"}, r"model_type 'a\nb' is not read"),
    ],
)
@pytest.mark.parametrize("reader", [read_decoder, read_details])
def test_a_refusal_is_one_line(
    tmp_path: Path, reader: Callable[[Path], object], changes: dict[str, Any], message: str
) -> None:
    """A refusal has the path and the key in one line, whatever the file holds."""
    path = write(tmp_path, change("qwen3_moe", **changes))
    error = refusal(lambda: reader(path))
    assert error is not None
    assert error.what.startswith(f"{path}: {message}")
    assert len(str(error).splitlines()) == 1


def test_the_nearest_model_types_are_named(tmp_path: Path) -> None:
    """The refusal of an unknown model type lists similar known ones."""
    with pytest.raises(ConfigError) as error:
        read(tmp_path, change("qwen3_moe", model_type="qwen3_moee"))
    assert "qwen3_moe," in error.value.remedy


@pytest.mark.parametrize("whole", ["mllama", "deepseek_v41"])
def test_a_text_part_that_is_not_read_has_one_reason(tmp_path: Path, whole: str) -> None:
    """What its layers store follows from its type, which is refused once, by its place."""
    kind = COMPOSITES[whole].text
    text = change("llama", model_type=kind)
    (refusal,) = read_model_file(
        write(tmp_path, {"model_type": whole, "text_config": text})
    ).refusals
    assert refusal.key == "text_config.model_type"
    assert UNREAD[kind] in refusal.reason


@pytest.mark.parametrize("kind", UNREAD)
def test_a_known_unsupported_model_type_has_its_reason(tmp_path: Path, kind: str) -> None:
    """What of its layers has no module is said, alone and as the text of a model of parts."""
    model_of_parts = {"gemma3n_text": "gemma3n", "inkling_text": "inkling_mm_model"}
    document = change("llama", model_type=kind)
    documents = [document, {"model_type": kind.removesuffix("_text"), "text_config": document}]
    documents[1]["model_type"] = model_of_parts.get(kind, documents[1]["model_type"])
    for document_ in documents[: 1 + (kind.endswith("_text") and kind != "hrm_text")]:
        error = refusal(lambda case=document_: read(tmp_path, case))
        assert error
        assert f"model_type {kind!r} is not read: {UNREAD[kind]}" in error.what
    assert kind not in FAMILIES


def test_all_unknown_keys_are_reported_at_once(tmp_path: Path) -> None:
    """Latent attention, hybrid layers, mixed windows and missing keys are in one message."""
    changes = {
        "kv_lora_rank": 512, "full_attention_interval": 4, "num_key_value_heads": 3,
        "layer_types": ["full_attention"] * 5 + ["sliding_attention"], "vocab_size": ...,
    }  # fmt: skip
    path = write(tmp_path, change("llama", **changes))
    with pytest.raises(RefusedError) as error:
        read_decoder(path)
    assert {refusal_.key for refusal_ in error.value.refusals} == set(changes)
    path = write(tmp_path, change("llama", model_type="lama", **changes))
    with pytest.raises(RefusedError) as error:
        read_decoder(path)
    assert {refusal_.key for refusal_ in error.value.refusals} == {
        "model_type", "kv_lora_rank", "full_attention_interval", "layer_types",
    }  # fmt: skip


def test_infinity_is_a_number_that_no_shape_has(tmp_path: Path) -> None:
    """Infinity and NaN are read as Hugging Face reads them, and are no shape of a model."""
    limits = {"time_step_limit": [0.0, float("inf")]}
    assert read(tmp_path, change("llama", **limits)) == read(tmp_path, SMALL["llama"])
    error = refusal(lambda: read(tmp_path, change("llama", hidden_size=float("inf"))))
    assert error
    assert "hidden_size inf is no whole number" in error.what


def test_a_dtype_that_published_files_leave_out_is_required(tmp_path: Path) -> None:
    """Hunyuan 3's have none, so that no one is sent there for it; it is asked for once."""
    file = read_model_file(write(tmp_path, change("hy_v3", torch_dtype=...)))
    (only,) = file.refusals
    assert (only.key, only.reason) == ("dtype or torch_dtype", "is missing")
    assert "the dtype of the checkpoint's weights, such as bfloat16" in only.remedy
    error = refusal(lambda: read(tmp_path, change("hy_v3", hidden_size=...)))
    assert error
    assert "Add it from the model's published config.json" in str(error)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is not JSON"),
        (b"\xff\xfe{", "is not JSON"),
        (b"\xef\xbb\xbf{}", "is not JSON"),
        (b"[]", "holds no JSON object"),
        (b'{"model_type": NaN}', "model_type nan is no text"),
        (b'{"vocab_size": 1, "vocab_size": 2}', "'vocab_size' stands twice"),
        (b'{"vocab_size": ' + b"9" * 5000 + b"}", "is not JSON"),
        (b"[" * 200_000, "is not JSON"),
        (b'{"hidden_size": ' + b"[" * 900 + b"]" * 900 + b"}", "model_type is missing"),
        (b" " * 4_000_001, "is larger than"),
        (b"{}", "model_type is missing"),
    ],
    ids=range(11),
)
def test_a_hostile_file_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    """Any bytes end in one message that names the file."""
    path = tmp_path / "small.json"
    path.write_bytes(content)
    with pytest.raises(ConfigError) as error:
        read_decoder(path)
    assert str(path) in error.value.what
    assert message in error.value.what


@given(st.binary(max_size=200))
@settings(max_examples=100, deadline=None)
def test_random_bytes_are_refused(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    """Random bytes raise nothing but a ConfigError."""
    path = tmp_path_factory.getbasetemp() / "random.json"
    path.write_bytes(content)
    with pytest.raises(ConfigError):
        read_decoder(path)


@pytest.mark.parametrize("path", ["nowhere.json", "x" * 5000, "a\0b", "/dev/null/x", "/dev/zero"])
def test_a_path_without_a_file_is_refused(path: str) -> None:
    """A path without a file is refused as such, whatever the system's error."""
    with pytest.raises(ConfigError):
        read_decoder(Path(path))


def test_a_folder_without_a_config_is_refused() -> None:
    """A folder without config.json says which file is missing."""
    with pytest.raises(ConfigError, match=r"published/config\.json is not there"):
        read_decoder(CONFIG / "published")


def test_a_model_of_one_position_is_refused_for_that_alone(tmp_path: Path) -> None:
    """Jamba's keys of states and of layers' kinds are understood: what is missing is a forward."""
    file = write(tmp_path, {"model_type": "jamba", "torch_dtype": "bfloat16", **STORED["jamba"]})
    with pytest.raises(RefusedError) as error:
        read_decoder(file)
    (refusal_,) = error.value.refusals
    assert (refusal_.key, "one position of a request" in refusal_.reason) == ("model_type", True)
