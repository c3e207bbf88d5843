"""Random weights as GGUF files: their content, and equal forwards from file and memory."""

import hashlib
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from decoders.files import change, parameters, weights_bytes, write
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs
from nearfree.decoders.config_file import read_decoder
from nearfree.decoders.details import Details, read_details
from nearfree.decoders.model import read_model
from nearfree.decoders.model_file import read_model_file
from nearfree.decoders.rope import Llama3, Rope
from nearfree.decoders.weights import stored
from nearfree.errors import ConfigError
from nearfree.gguf.header import stored_bytes
from nearfree.gguf.reader import read_header
from nearfree.models import gguf_values
from nearfree.models.forward import DecoderForward
from nearfree.models.gguf_names import ARCHITECTURES, model_weights
from nearfree.models.gguf_values import LOAD, STORE, random_weight, to_neighbours
from nearfree.models.gguf_weights import write_random_gguf
from nearfree.models.rotation import frequencies

from models.gguf_state import GgufWeights, to_halves
from models.given_weights import GivenWeights

SCALED = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}  # fmt: skip
_SAID: dict[str, dict[str, Any]] = {
    "mistral": {"sliding_window": None},
    "qwen2_moe": {"norm_topk_prob": False},
    "qwen3_moe": {"norm_topk_prob": True},
}
TOKENS = [5, 17, 33, 99, 2, 41, 60, 7, 8, 9, 1, 0]


def config(folder: Path, kind: str, **changes: Any) -> Path:
    """Write a small config.json of a model type, with all that a forward needs."""
    config = {
        "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "hidden_act": "silu", "attention_bias": False,
        **_SAID.get(kind, {}), **changes,
    }  # fmt: skip
    return write(folder, change(kind, **config))


@pytest.mark.parametrize("kind", ARCHITECTURES)
@pytest.mark.parametrize("type_", STORE)
def test_what_is_written_is_the_model(tmp_path: Path, kind: str, type_: str) -> None:
    """The file reads as its model, in its type, with all weights."""
    path = config(tmp_path, kind, tie_word_embeddings=kind != "qwen3")
    to = tmp_path / "small.gguf"
    header = write_random_gguf(path, to, type_=type_)
    assert header == read_header(to)
    assert sum(tensor.elements for tensor in header.tensors) == parameters(stored(path))
    file = read_model_file(to)
    assert (file.refusals, file.mixed) == ((), ())
    assert weights_bytes(file) == stored_bytes(header)
    if kind != "mistral" and type_ == "bf16":  # which is Llama's architecture in such files
        assert read_model(tmp_path, str(to)) == read_model(tmp_path, str(path))
    assert header.file_type == type_.upper()
    assert {path.name for path in tmp_path.iterdir()} == {"small.json", "small.gguf"}


@pytest.mark.parametrize("kind", ARCHITECTURES)
@pytest.mark.parametrize("type_", STORE)
def test_a_forward_has_the_weights_that_were_made(tmp_path: Path, kind: str, type_: str) -> None:
    """Out of the file come the weights that follow from names and seed, in checkpoints' order."""
    path, to = config(tmp_path, kind), tmp_path / "small.gguf"
    write_random_gguf(path, to, type_=type_, seed=7)
    weights = GgufWeights(to, torch.float32)
    for weight in model_weights(path)[1]:
        if weight.routed:
            continue
        name = weight.names[0]
        expected = torch.from_numpy(
            np.ones(weight.shape, np.float32)
            if weight.ones
            else LOAD[type_](random_weight(name, weight.shape, seed=7, type_=type_))
        )
        tensor = weights(name.replace("block_sparse_moe", "mlp"), weight.shape)
        assert torch.equal(tensor, expected), name
    moe = [weight for weight in model_weights(path)[1] if weight.routed]
    assert bool(moe) == ("moe" in kind or kind == "mixtral")
    if moe:
        gate, up = (
            next(weight for weight in moe if weight.tensor == f"blk.2.ffn_{part}_exps.weight")
            for part in ("gate", "up")
        )
        both = weights(
            "model.layers.2.mlp.experts.gate_up_proj",
            (len(gate.names), 2 * gate.shape[0], gate.shape[1]),
        )
        parts = [
            LOAD[type_](random_weight(part.names[3], part.shape, seed=7, type_=type_))
            for part in (gate, up)
        ]
        assert torch.equal(both[3], torch.from_numpy(np.concatenate(parts)))


def logits(path: Path, details: Details, weights: Any) -> torch.Tensor:
    """Return the logits of some tokens, [1, N, vocabulary]."""
    forward = DecoderForward(
        read_decoder(path), details, weights, batch=1, context=0, max_positions=len(TOKENS),
        dtype=torch.float32,
    )  # fmt: skip
    return forward.forward(torch.tensor([TOKENS]))


@pytest.mark.parametrize("kind", ["llama", "mixtral"])
def test_rows_are_in_the_order_of_neighbours(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With neighbouring pairs, the file's rows give a checkpoint's logits."""
    monkeypatch.setattr(gguf_values, "SPREAD", 0.3)
    path, to = config(tmp_path, kind), tmp_path / "small.gguf"
    write_random_gguf(path, to, type_="f32")
    details = read_details(path)
    assert details.rope is not None
    ours = logits(path, details, GgufWeights(to, torch.float32))
    monkeypatch.setattr("models.gguf_state.to_halves", lambda rows, _: rows)
    raw = GgufWeights(to, torch.float32)
    neighbours = structs.replace(details.rope, interleaved=True)
    turned = logits(path, structs.replace(details, rope=neighbours), raw)
    torch.testing.assert_close(turned, ours, rtol=1e-4, atol=1e-4)
    assert not torch.allclose(logits(path, details, raw), ours, rtol=1e-2, atol=1e-2)


@given(heads=st.integers(1, 5), half=st.integers(1, 4), columns=st.none() | st.integers(1, 3))
def test_orders_undo_each_other(heads: int, half: int, columns: int | None) -> None:
    """Reordering rows and biases twice restores them; pair i is rows 2 i and 2 i + 1."""
    shape = (heads * 2 * half,) if columns is None else (heads * 2 * half, columns)
    rows = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    there = to_neighbours(rows, heads)
    assert np.array_equal(to_halves(there, heads), rows)
    for pair in range(half):
        assert np.array_equal(there[2 * pair], rows[pair])
        assert np.array_equal(there[2 * pair + 1], rows[pair + half])


def test_scaled_rotations_have_their_factors(tmp_path: Path) -> None:
    """Frequencies divided by the file's factors are those of Llama 3's scaling."""
    path, to = config(tmp_path, "llama", rope_scaling=SCALED), tmp_path / "small.gguf"
    header = write_random_gguf(path, to)
    table = header.by_name["rope_freqs.weight"]
    factors = np.fromfile(to, np.float32, table.elements, offset=table.offset)
    scaling = Llama3(factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_positions=64)
    plain = frequencies(Rope(theta=10000.0, width=8))
    scaled = frequencies(Rope(theta=10000.0, width=8, llama3=scaling))
    torch.testing.assert_close(plain / torch.from_numpy(factors), scaled)
    assert set(factors) > {1.0, 8.0}
    given = GgufWeights(to, torch.float32)
    assert logits(path, read_details(path), given).isfinite().all()


def test_bf16_is_rounded_as_torch_does() -> None:
    """Numbers are rounded to the nearest, ties to even."""
    bits = np.random.default_rng(0).integers(0, 1 << 32, 100_000, dtype=np.uint32)
    values = bits.view(np.float32)[np.isfinite(bits.view(np.float32))]
    values = np.concatenate((values, np.float32([1.00390625, 1.01171875, 0.0, -0.0])))
    theirs = torch.from_numpy(values).bfloat16().float().numpy()
    assert np.array_equal(LOAD["bf16"](STORE["bf16"][1](values)), theirs)


def test_files_are_the_same_for_a_seed(tmp_path: Path) -> None:
    """A seed always gives the same file, another seed another one."""
    path, digests = config(tmp_path, "qwen3"), []
    for seed in (0, 0, 1):
        write_random_gguf(path, tmp_path / "small.gguf", seed=seed)
        digests.append(hashlib.sha256((tmp_path / "small.gguf").read_bytes()).hexdigest())
    assert digests[0] == digests[1] != digests[2]


def test_a_weight_does_not_depend_on_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A weight drawn in smaller blocks is the same, with the right variance."""
    weight = random_weight("a", (300, 64), seed=0, type_="f32")
    monkeypatch.setattr(gguf_values, "_BLOCK", 640)
    assert np.array_equal(random_weight("a", (300, 64), seed=0, type_="f32"), weight)
    assert np.std(weight) == pytest.approx(0.02, rel=0.02)


def test_a_tokenizer_has_a_token_for_each_row(tmp_path: Path) -> None:
    """Tokens are as many as the vocabulary; without room for bytes there is no tokenizer."""
    key = "tokenizer.ggml.tokens"
    write_random_gguf(config(tmp_path, "llama"), tmp_path / "small.gguf")
    tokens = read_header(tmp_path / "small.gguf", whole=[key]).metadata[key]
    assert isinstance(tokens, tuple)
    assert len(tokens) == len(set(tokens)) == 500
    assert (tokens[3], tokens[258], tokens[499]) == ("<0x00>", "<0xFF>", "<t499>")
    write_random_gguf(config(tmp_path, "llama", vocab_size=100), tmp_path / "small.gguf")
    metadata = read_header(tmp_path / "small.gguf").metadata
    assert metadata["tokenizer.ggml.model"] == "no_vocab"
    assert read_decoder(tmp_path / "small.gguf").vocabulary == 100


@pytest.mark.parametrize(
    ("kind", "changes", "why"),
    [
        ("gemma2", {}, "is of model type gemma2, whose GGUF files are not written here"),
        ("mistral", {"sliding_window": 32}, "has a window"),
        ("qwen2", {"rope_scaling": SCALED}, "Llama 3's scaling"),
        ("llama", {"rope_scaling": {**SCALED, "rope_type": "yarn"}}, "has rotations that are not"),
        ("llama", {"hidden_size": ...}, "hidden_size is missing"),
    ],
)
def test_other_models_are_refused(
    tmp_path: Path, kind: str, changes: dict[str, Any], why: str
) -> None:
    """An unsupported model is refused, and no file is left."""
    with pytest.raises(ConfigError, match=why):
        write_random_gguf(config(tmp_path, kind, **changes), tmp_path / "small.gguf")
    assert [path.name for path in tmp_path.iterdir()] == ["small.json"]


def test_mistakes_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another type, a missing folder and a missing package are refused by name."""
    path = config(tmp_path, "llama")
    with pytest.raises(ConfigError, match=r"'q4_0' is no type.*Choose bf16, f16, f32"):
        write_random_gguf(path, tmp_path / "small.gguf", type_="q4_0")
    with pytest.raises(ConfigError, match="cannot be written"):
        write_random_gguf(path, tmp_path / "none" / "small.gguf")
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(ConfigError, match="pip install gguf"):
        write_random_gguf(path, tmp_path / "small.gguf")


def test_a_forward_refuses_other_weights(tmp_path: Path) -> None:
    """A weight that the file does not have, or in another shape, is refused by its name."""
    path, to = config(tmp_path, "llama"), tmp_path / "small.gguf"
    write_random_gguf(path, to)
    weights = GgufWeights(to, torch.float32)
    with pytest.raises(ConfigError, match=r"has no weight model\.layers\.9"):
        weights("model.layers.9.mlp.up_proj.weight", (96, 64))
    with pytest.raises(ConfigError, match="of shape"):
        weights("model.embed_tokens.weight", (64, 64))


def test_a_forward_is_the_same_from_a_mapping(tmp_path: Path) -> None:
    """The logits are those of the same weights given by name."""
    path, to = config(tmp_path, "qwen2"), tmp_path / "small.gguf"
    write_random_gguf(path, to)
    tensors = {
        name: torch.from_numpy(
            np.ones(weight.shape, np.float32)
            if weight.ones
            else LOAD["bf16"](random_weight(name, weight.shape, seed=0, type_="bf16"))
        )
        for weight in model_weights(path)[1]
        for name in weight.names
    }
    details = read_details(path)
    ours = logits(path, details, GgufWeights(to, torch.float32))
    assert torch.equal(ours, logits(path, details, GivenWeights(tensors, torch.float32)))


@pytest.mark.slow
def test_large_models_are_written_in_little_memory(tmp_path: Path) -> None:
    """A model with a large vocabulary takes its largest tensor and 300 MB at most."""
    path = config(
        tmp_path, "llama", vocab_size=100_000, hidden_size=1024, tie_word_embeddings=True,
        num_hidden_layers=2,
    )  # fmt: skip
    program = (
        "import re\nfrom pathlib import Path\n"
        "from nearfree.models.gguf_weights import write_random_gguf\n"
        f"write_random_gguf(Path({str(path)!r}), Path({str(tmp_path / 'a.gguf')!r}))\n"
        "print(re.search(r'VmHWM:\\s*(\\d+)', Path('/proc/self/status').read_text())[1])\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert int(done.stdout) * 1024 < 2 * 100_000 * 1024 + 300e6
