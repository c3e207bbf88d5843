"""llama.cpp and the forward of this project, with the same weights, give the same logits."""

import ctypes
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import torch
from models.gguf_state import GgufWeights
from nearfree.backends.builds import build_of
from nearfree.decoders.config_file import read_decoder
from nearfree.decoders.details import read_details
from nearfree.engines.files import cached_weights, library_folder
from nearfree.engines.library import load
from nearfree.engines.llama_cpp import Context, Model
from nearfree.gguf.types import FILE_TYPES
from nearfree.models.forward import DecoderForward

from engines.shipped import RELEASE, WEIGHTS, fetched

TEXT = b"The capital of France is Paris. The capital of Italy is Rome. The capital of Japan is"
STEPS = 64
BFLOAT16 = next(number for number, name in FILE_TYPES.items() if name == "BF16")


@pytest.fixture
def model(tmp_path: Path) -> Iterator[tuple[Path, Model]]:
    """Give SmolLM2's weights, widened to BF16 by llama.cpp itself, and loaded."""
    fetched()
    build = build_of("llama_cpp", RELEASE)
    library = load(library_folder("llama_cpp", RELEASE, build), build)
    parameters = library.calls.llama_model_quantize_default_params()
    parameters.ftype, parameters.allow_requantize = BFLOAT16, True
    path = tmp_path / "bf16.gguf"
    names = (str(file).encode() for file in (cached_weights(WEIGHTS), path))
    assert library.calls.llama_model_quantize(*names, ctypes.addressof(parameters)) == 0
    with closing(Model(library, path, repack=False)) as loaded:
        yield path, loaded


def tokens_of(model: Model, text: bytes) -> list[int]:
    """Return a text's tokens, as the model's own vocabulary has them."""
    room = (ctypes.c_int32 * 256)()
    vocabulary = model.calls.llama_model_get_vocab(model.pointer)
    at = ctypes.addressof(room)
    options = (True, True)  # its start is added, and special tokens are read
    count = model.calls.llama_tokenize(vocabulary, text, len(text), at, 256, *options)
    return list(room[:count])


@pytest.mark.slow
def test_logits_agree_and_greedy_tokens_are_equal(model: tuple[Path, Model]) -> None:
    """Of real weights in BF16 logits differ by less than 1 %, and 64 greedy tokens are equal."""
    path, loaded = model
    prompt = tokens_of(loaded, TEXT)
    context = Context(loaded, batch=1, cached=0, positions=len(prompt) + STEPS, threads=1)
    context.decode(prompt, 0)
    theirs = torch.tensor([list(context.logits(place)) for place in range(len(prompt))])
    written, last = [], theirs[-1]
    for step in range(STEPS):
        written.append(int(last.argmax()))
        context.decode(written[-1:], len(prompt) + step)
        last = torch.tensor(list(context.logits(0)))
    with torch.inference_mode():
        forward = DecoderForward(
            read_decoder(path),
            read_details(path),
            GgufWeights(path, torch.float32),
            batch=1,
            context=0,
            max_positions=len(prompt) + STEPS,
            dtype=torch.float32,
            device="cpu",
            mask="causal",
            routing=None,
            attention="torch_sdpa",
            moe="torch_padded",
            shared=None,
        )
        ours = forward.forward(torch.tensor([prompt]))[0]
        logits = forward.forward(torch.tensor([prompt + written[:-1]]))[0]
    assert ((ours - theirs).norm() / theirs.norm()).item() < 0.01
    assert logits[len(prompt) - 1 :].argmax(-1).tolist() == written
