"""What engines take on GPUs of files that say float32."""

from pathlib import Path

from gguf_files.models import model
from msgspec import structs
from nearfree.core.precision import Product, uniform
from nearfree.decoders.model_file import find_drafter_file, read_model_file
from nearfree.decoders.served import as_served

from decoders.files import change, weights_bytes, write
from decoders.test_draft_heads import EAGLE
from decoders.test_model_file import FP8


def test_float32_is_taken_as_bfloat16(tmp_path: Path) -> None:
    """Weights, cache and forward are those of the same file in bfloat16, and a note says so."""
    in_float32, in_bfloat16 = (
        read_model_file(write(tmp_path, change("llama", torch_dtype=dtype)))
        for dtype in ("float32", "bfloat16")
    )
    served = as_served(in_float32)
    assert structs.replace(served, notes=()) == in_bfloat16
    (note,) = served.notes
    assert note.startswith("dtype is float32: bfloat16, as engines load it on GPUs")


def test_other_files_stay_as_they_are(tmp_path: Path) -> None:
    """What is in 16 bits is, and so is a GGUF file, whose matrices are run as they are stored."""
    paths = [
        write(tmp_path, change("llama", torch_dtype=dtype), f"{dtype}.json")
        for dtype in ("bfloat16", "float16")
    ]
    _, gguf_file = model(tmp_path, "llama", types=lambda matrix: "f32")  # noqa: ARG005
    for path in (*paths, gguf_file):
        file = read_model_file(path)
        assert as_served(file) is file


def test_what_is_quantised_stays_quantised(tmp_path: Path) -> None:
    """Beside weights in FP8 what is left plain is halved, and no more."""
    document = change("qwen3", torch_dtype="float32", quantization_config=FP8)
    file = read_model_file(write(tmp_path, document))
    served = as_served(file)
    assert served.precision is not None
    assert served.precision.ffn == Product("float8_block", "float8_block")
    assert (served.precision.plain, served.precision.kv) == ("bfloat16", "bfloat16")
    plain_elements = sum(
        weight.elements for weight in file.weights if weight.kind not in ("ffn", "attention")
    )
    assert weights_bytes(file) - weights_bytes(served) == 2 * plain_elements


def test_a_drafter_s_head_is_halved_too(tmp_path: Path) -> None:
    """Of a head the forward alone is known, and it is in bfloat16."""
    head = find_drafter_file(tmp_path, str(write(tmp_path, EAGLE | {"torch_dtype": "float32"})))
    served = as_served(head).decoder
    assert served is not None
    assert served.dtype == uniform("bfloat16").plain
