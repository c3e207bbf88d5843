"""Headers as the `gguf` package writes and reads them."""

from pathlib import Path

import gguf
import numpy as np
from nearfree.gguf.reader import read_header


def test_both_readers_agree(tmp_path: Path) -> None:
    """The package's reader and ours read the same from a file of the package's writer."""
    path = tmp_path / "a.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(2)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_bool("some.truth", val=True)
    writer.add_token_list([f"<t{number}>" for number in range(2000)])
    writer.add_array("some.numbers", [1, 2, 3])
    random = np.random.default_rng(0)
    for name, shape in (("token_embd.weight", (7, 64)), ("output_norm.weight", (64,))):
        writer.add_tensor(name, random.standard_normal(shape, dtype=np.float32))
    halves = random.standard_normal((3, 4, 32)).astype(np.float16)
    writer.add_tensor("blk.0.ffn_up_exps.weight", halves)
    packed = gguf.quantize(halves.astype(np.float32), gguf.GGMLQuantizationType.Q8_0)
    writer.add_tensor("blk.1.ffn_up_exps.weight", packed, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    ours, theirs = read_header(path, whole=["tokenizer.ggml.tokens"]), gguf.GGUFReader(path)
    contents = {key: field.contents() for key, field in theirs.fields.items() if key[:5] != "GGUF."}
    assert {
        key: list(value) if isinstance(value, tuple) else value
        for key, value in ours.metadata.items()
    } == contents
    assert [(e.name, e.dims, e.type.number, e.offset, e.size_bytes) for e in ours.tensors] == [
        (
            tensor.name,
            tuple(int(size) for size in tensor.shape),
            tensor.tensor_type.value,
            tensor.data_offset,
            tensor.n_bytes,
        )
        for tensor in theirs.tensors
    ]
    assert ours.data_offset == theirs.data_offset
