"""Models in GGUF files: the same decoder as their config.json's, and their own bytes."""

import time
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import pytest
from gguf_files.files import SMALL as TINY
from gguf_files.files import TensorEntry, array, scalar, string
from gguf_files.models import ARCHITECTURES, model
from nearfree.core.precision import Override, Product, uniform
from nearfree.decoders.config_file import config_file, read_decoder
from nearfree.decoders.gguf_files.config import gguf_values
from nearfree.decoders.gguf_files.names import tensor_names
from nearfree.decoders.gguf_files.parts import check_gguf
from nearfree.decoders.layouts.pieces import Matrix
from nearfree.decoders.model import read_model
from nearfree.decoders.model_file import read_model_file
from nearfree.decoders.weights import stored
from nearfree.errors import ConfigError, RefusedError
from nearfree.gguf.header import stored_bytes
from nearfree.gguf.reader import read_header
from nearfree.gguf.types import PLAIN

from decoders.files import parameters, weights_bytes, write


@pytest.mark.parametrize("kind", ARCHITECTURES)
def test_a_decoder_is_that_of_its_config(tmp_path: Path, kind: str) -> None:
    """Every architecture gives the decoder, cache and weights of the config that it came from."""
    config, path = model(tmp_path, kind)
    assert read_decoder(path) == read_decoder(config)
    of_gguf, of_config = read_model_file(path), read_model_file(config)
    assert of_gguf.refusals == of_gguf.mixed == ()
    assert (of_gguf.cache, of_gguf.heads, of_gguf.widest) == (
        of_config.cache,
        of_config.heads,
        of_config.widest,
    )
    assert parameters(of_gguf) == parameters(of_config)
    assert {weight.kind for weight in of_gguf.weights} == {
        weight.kind for weight in of_config.weights
    }


@pytest.mark.parametrize("kind", ARCHITECTURES)
@pytest.mark.parametrize("type_", ["bf16", "q8_0", "q4_1", "mixed"])
def test_bytes_are_those_of_the_file(tmp_path: Path, kind: str, type_: str) -> None:
    """Whatever types a file has, the weights come to the bytes of its tensors."""

    def types(matrix: Matrix) -> str:
        if matrix.inputs == 1 or matrix.kind == "router":
            return "f32"
        if matrix.inputs % 32:
            return "bf16"
        mixed = "q5_0" if matrix.name.endswith("down_proj") else "iq4_nl"
        return mixed if type_ == "mixed" else type_

    _, path = model(tmp_path, kind, types=types)
    file = read_model_file(path)
    assert weights_bytes(file) == stored_bytes(read_header(path))
    assert file.refusals == ()
    assert (file.precision is None) == (type_ != "bf16")
    assert bool(file.mixed) == (type_ != "bf16")


@pytest.mark.parametrize("kind", ["llama", "qwen3_moe"])
@pytest.mark.parametrize("type_", PLAIN)
def test_plain_files_have_their_format(tmp_path: Path, kind: str, type_: str) -> None:
    """A model in one plain type is computed in it, its vectors and routers in F32 too."""
    _, path = model(tmp_path, kind, types=partial(typed, type_))
    assert read_model_file(path).precision == uniform(PLAIN[type_])  # type: ignore[arg-type]
    assert read_decoder(path).dtype == PLAIN[type_]


def test_mxfp4_is_a_format_of_forwards(tmp_path: Path) -> None:
    """Experts in MXFP4 beside BF16 are what gpt-oss's own checkpoint has."""

    def types(matrix: Matrix) -> str:
        return "mxfp4" if matrix.kind == "experts" and matrix.inputs > 1 else typed("bf16", matrix)

    _, path = model(tmp_path, "gpt_oss", types=types)
    file = read_model_file(path)
    assert file.mixed == ()
    assert file.precision is not None
    assert file.precision.experts == Product("mxfp4", "bfloat16")


def test_another_format_may_be_asked_for(tmp_path: Path) -> None:
    """Of a file in Q8_0 the bytes of another format are its elements in that."""
    _, path = model(tmp_path, "llama", types=partial(typed, "q8_0"))
    file = read_model_file(path)
    assert file.precision is None
    assert file.unsaid == "float16"
    assert file.around == uniform("float16")
    (mixture,) = file.mixed
    assert mixture.reason.endswith("no forward here has: q8_0 (86% of all)")
    precision = Override(dtype="bfloat16").apply(uniform("float16"))
    assert weights_bytes(file, precision) == 2 * parameters(file)


def test_what_corrects_scores_of_a_router_is_no_weight(tmp_path: Path) -> None:
    """A file has it beside its experts; its bytes count, and no product has it."""
    name = "blk.3.exp_probs_b.bias"
    _, path = model(tmp_path, "lfm2_moe", tensor_changes={name: TensorEntry(name, (4,), 0, 16)})
    file = read_model_file(path)
    assert (file.refusals, file.mixed) == ((), ())
    assert weights_bytes(file) == stored_bytes(read_header(path))


@pytest.mark.parametrize(
    ("heads", "message"),
    [([0, 0, 2, 0, 0, 4], "does not give one number"), ([0, 0, 2], "has 3 entries for 6 layers"),
     ([0] * 6, "head_count_kv 0 is no whole number from 1")],
)  # fmt: skip
def test_layers_that_attend_have_one_number_of_heads(
    tmp_path: Path, heads: list[int], message: str
) -> None:
    """A layer of LFM2 without any has a convolution; others that differ are not read."""
    changes = {"lfm2.attention.head_count_kv": array("int32", heads)}
    _, path = model(tmp_path, "lfm2", metadata_changes=changes)
    assert any(message in reason for reason in reported_reasons(path))


def typed(type_: str, matrix: Matrix) -> str:
    """Return a type for matrices alone."""
    return "f32" if matrix.inputs == 1 or matrix.kind == "router" else type_


def reported_reasons(path: Path) -> list[str]:
    """Return every reason why a file is refused."""
    return [str(refusal) for refusal in read_model_file(path).refusals]


FOUR = ", ".join(f"blk.5.{name}.weight" for name in ("attn_norm", "ffn_norm", "attn_q", "attn_k"))
CONTRADICTIONS: dict[str, tuple[dict[str, Any], list[str]]] = {
    "width": (
        {"metadata_changes": {"llama.embedding_length": scalar("uint32", 128),
                  "llama.attention.key_length": scalar("uint32", 8)}},
        ["token_embd.weight has 64 x 500 elements, and the metadata say 128 x 500"],
    ),
    "kv heads": (
        {"metadata_changes": {"llama.attention.head_count_kv": scalar("uint32", 4)}},
        ["blk.0.attn_k.weight has 64 x 16 elements, and the metadata say 64 x 32",
         "blk.0.attn_v.weight has 64 x 16 elements, and the metadata say 64 x 32"],
    ),
    "layers": (
        {"metadata_changes": {"llama.block_count": scalar("uint32", 7)}},
        ["blk.6.attn_norm.weight is missing"],
    ),
    "many layers": (
        {"metadata_changes": {"llama.block_count": scalar("uint32", 10_000_000)}},
        ["llama.block_count 10000000 is more than its 57 tensors"],
    ),
    "fewer layers": (
        {"metadata_changes": {"llama.block_count": scalar("uint32", 5)}},
        [f"has tensors that no llama has: {FOUR} and 5 more"],
    ),
    "stranger": (
        {
            "tensor_changes": {
                "blk.0.other.weight": TensorEntry("blk.0.other.weight", (32,), 0, 128)
            }
        },
        ["has tensors that no llama has: blk.0.other.weight"],
    ),
    "vocabulary": (
        {"metadata_changes": {"tokenizer.ggml.tokens": array("text", ["a"] * 499)}},
        ["llama.vocab_size None differs: 499 tokens are not the 500 rows of token_embd.weight"],
    ),
    "missing": (
        {
            "metadata_changes": {
                "llama.block_count": None,
                "llama.attention.layer_norm_rms_epsilon": None,
            }
        },
        ["llama.block_count is missing", "llama.attention.layer_norm_rms_epsilon is missing"],
    ),
    "architecture": (
        {"metadata_changes": {"general.architecture": string("llamb")}},
        ["general.architecture 'llamb' is not read"],
    ),
    "parts": (
        {"metadata_changes": {"split.count": scalar("uint16", 3)}},
        ["split.count 3 says that the file is one of several"],
    ),
    "heads by layer": (
        {"metadata_changes": {"llama.attention.head_count": array("uint32", [8, 8, 8, 4, 8, 8])}},
        ["llama.attention.head_count [...] differs by layer, which is not read"],
    ),
    "value": (
        {"metadata_changes": {"llama.attention.value_length": scalar("uint32", 9)}},
        ["llama.attention.value_length 9 is not the key_length 8"],
    ),
    "text": (
        {"metadata_changes": {"llama.embedding_length": string("64")}},
        ["llama.embedding_length '64' is no whole number from 1 to 10000000"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CONTRADICTIONS)
def test_contradictions_are_refused_together(tmp_path: Path, case: str) -> None:
    """What metadata and tensors say otherwise is refused, with every reason and its place."""
    changes, reasons = CONTRADICTIONS[case]
    _, path = model(tmp_path, "llama", **changes)
    reported = reported_reasons(path)
    assert [reason for reason in reasons if reason not in reported] == []
    with pytest.raises(ConfigError, match=r"small\.gguf"):
        check_gguf(path)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["llama", "gemma3_text", "qwen3_moe", "gpt_oss"])
def test_flipped_bytes_are_read_or_refused(tmp_path: Path, kind: str) -> None:
    """Whatever bytes of a header change, a model comes out or one ConfigError, soon."""
    _, path = model(tmp_path, kind)
    original = path.read_bytes()
    header, random = read_header(path).data_offset, Random(25)  # noqa: S311 (no secret)
    read_count = refused_count = 0
    for _ in range(150):
        raw = bytearray(original)
        for _ in range(random.choice((1, 1, 3))):
            raw[random.randrange(24, header)] = random.choice((0, 1, 8, 255, random.randrange(256)))
        path.write_bytes(raw)
        start = time.process_time()
        try:
            file = read_model_file(path)
            read_count, refused_count = read_count + 1, refused_count + bool(file.refusals)
        except ConfigError:
            refused_count += 1
        assert time.process_time() - start < 2
    assert read_count
    assert refused_count


def test_an_empty_model_is_refused(tmp_path: Path) -> None:
    """A file with hardly anything in it is refused without a traceback."""
    path = tmp_path / "tiny.gguf"
    path.write_bytes(TINY)
    assert reported_reasons(path)


def test_numbers_by_layer_may_be_alike(tmp_path: Path) -> None:
    """A list with the same number for each layer is that number."""
    config, path = model(
        tmp_path,
        "llama",
        metadata_changes={"llama.attention.head_count_kv": array("uint32", [2] * 6)},
    )
    assert read_decoder(path) == read_decoder(config)


def test_a_scaling_in_a_tensor_is_no_weight(tmp_path: Path) -> None:
    """Factors of rotations are counted, and the forward that would need them is not run."""
    table = TensorEntry("rope_freqs.weight", (4,), 0, 16)
    config, path = model(tmp_path, "llama", tensor_changes={"rope_freqs.weight": table})
    file = read_model_file(path)
    assert file.refusals == ()
    assert weights_bytes(file) == stored_bytes(read_header(path))
    assert file.decoder == read_decoder(config)
    with pytest.raises(RefusedError, match="factors in a tensor"):
        read_model(tmp_path, str(path))


def test_a_model_that_is_run_is_that_of_its_config(tmp_path: Path) -> None:
    """A plain file is run as its config.json is; one with scales is refused by its types."""
    config, path = model(
        tmp_path, "qwen3", rms_norm_eps=1e-6, rope_theta=10000.0, hidden_act="silu"
    )
    assert read_model(tmp_path, str(path)) == read_model(tmp_path, str(config))
    _, path = model(tmp_path, "qwen3", types=partial(typed, "q4_0"))
    with pytest.raises(RefusedError, match="q4_0"):
        read_model(tmp_path, str(path))


def test_a_folder_may_hold_one_file(tmp_path: Path) -> None:
    """The only GGUF file of a folder is the model; of several one must be named."""
    _, path = model(tmp_path, "llama")
    (tmp_path / "small.json").unlink()
    assert config_file(tmp_path) == path
    assert read_decoder(tmp_path) == read_decoder(path)
    (tmp_path / "other.gguf").write_bytes(path.read_bytes())
    with pytest.raises(ConfigError, match=r"holds 2 GGUF files.*such as other.gguf"):
        read_decoder(tmp_path)
    write(tmp_path, {"model_type": "llama"}, "config.json")
    assert config_file(tmp_path).name == "config.json"


def test_gemma_alternates_as_the_file_says(tmp_path: Path) -> None:
    """A pattern by layer stands in the place of the usual period."""
    pattern = array("bool", [False, True, True, True, True, True])
    _, path = model(
        tmp_path,
        "gemma3_text",
        metadata_changes={"gemma3.attention.sliding_window_pattern": pattern},
    )
    values = gguf_values(read_header(path))
    assert values["layer_types"] == ["full_attention"] + ["sliding_attention"] * 5
    assert [kind.layers for kind in read_decoder(path).attention] == [(0,), (1, 2, 3, 4, 5)]


@pytest.mark.parametrize("kind", ARCHITECTURES)
def test_names_are_those_of_the_package(tmp_path: Path, kind: str) -> None:
    """Each weight has the name that the `gguf` package's own table has for it."""
    import gguf

    config, _ = model(tmp_path, kind)
    number = next(
        architecture
        for architecture, name in gguf.MODEL_ARCH_NAMES.items()
        if name == ARCHITECTURES[kind]
    )
    table = gguf.get_tensor_name_map(number, 6)
    for matrix in stored(config).weights:
        several = "gate_up_proj" in matrix.name and kind == "gpt_oss"
        if several or matrix.name.endswith(("attention.wqkv", "in_proj_qkvz")):
            continue  # one weight of the checkpoint, two or three tensors of the file
        layers = matrix.layers or (None,)
        for layer in layers:
            (gguf_name,) = tensor_names(kind, matrix.name, layer)
            name = matrix.name if layer is None else matrix.name.replace("*", str(layer), 1)
            checkpoint_name = name.removesuffix(".bias").replace(".experts.*.", ".experts.")
            checkpoint_name = checkpoint_name.removesuffix(".*").replace("dt_bias", "dt_proj")
            if "mixer.experts" in name:  # converters join the experts under this name
                checkpoint_name = f"model.layers.{layer}.mlp.{checkpoint_name.split('mixer.')[1]}"
            expected = table.get_name(checkpoint_name) or table.get_name(
                checkpoint_name.removeprefix("model.")
            )
            endings = ("", ".weight", ".bias")
            assert gguf_name in [f"{expected}{ending}" for ending in endings], name
