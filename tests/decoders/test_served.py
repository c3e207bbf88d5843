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
    wide, narrow = (
        read_model_file(write(tmp_path, change("llama", torch_dtype=dtype)))
        for dtype in ("float32", "bfloat16")
    )
    found = as_served(wide)
    assert structs.replace(found, notes=()) == narrow
    (note,) = found.notes
    assert note.startswith("dtype is float32: bfloat16, as engines load it on GPUs")


def test_other_files_stay_as_they_are(tmp_path: Path) -> None:
    """What is in 16 bits is, and so is a GGUF file, whose matrices are run as they are stored."""
    paths = [
        write(tmp_path, change("llama", torch_dtype=dtype), f"{dtype}.json")
        for dtype in ("bfloat16", "float16")
    ]
    _, wide = model(tmp_path, "llama", types=lambda matrix: "f32")  # noqa: ARG005
    for path in (*paths, wide):
        file = read_model_file(path)
        assert as_served(file) is file


def test_what_is_quantised_stays_quantised(tmp_path: Path) -> None:
    """Beside weights in FP8 what is left plain is halved, and no more."""
    wide = change("qwen3", torch_dtype="float32", quantization_config=FP8)
    file = read_model_file(write(tmp_path, wide))
    found = as_served(file)
    assert found.precision is not None
    assert found.precision.ffn == Product("float8_block", "float8_block")
    assert (found.precision.plain, found.precision.kv) == ("bfloat16", "bfloat16")
    plain = sum(each.elements for each in file.weights if each.kind not in ("ffn", "attention"))
    assert weights_bytes(file) - weights_bytes(found) == 2 * plain


def test_a_drafter_s_head_is_halved_too(tmp_path: Path) -> None:
    """Of a head the forward alone is known, and it is in bfloat16."""
    head = find_drafter_file(tmp_path, str(write(tmp_path, EAGLE | {"torch_dtype": "float32"})))
    found = as_served(head).decoder
    assert found is not None
    assert found.dtype == uniform("bfloat16").plain
