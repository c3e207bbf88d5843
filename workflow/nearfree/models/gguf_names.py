"""The weights of a model one by one: their names in checkpoints and GGUF files, and shapes."""

from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct

from nearfree.decoders.config_file import config_file, read_decoder
from nearfree.decoders.decoder import Decoder
from nearfree.decoders.gguf_files.names import tensor_names
from nearfree.decoders.layouts.pieces import Matrix
from nearfree.decoders.weights import stored
from nearfree.errors import Refusal, RefusedError

ARCHITECTURES = {
    "llama": "llama",
    "mistral": "llama",
    "mixtral": "llama",
    "qwen2": "qwen2",
    "qwen2_moe": "qwen2moe",
    "qwen3": "qwen3",
    "qwen3_moe": "qwen3moe",
}
"""The architecture in GGUF files by model type, for those that are written here."""


class Weight(Struct, frozen=True, kw_only=True):
    """One tensor of a GGUF file, and the weights of a checkpoint that it holds.

    `names` are those in the checkpoint: one, or with `routed` one per expert. `shape` is that of
    one weight, outputs before inputs. With `ones` the weights are factors and all one; with
    `float32` they are stored in float32. `heads` is above 0 for queries and keys whose rows are
    reordered so that rotated pairs are neighbours.
    """

    tensor: str
    names: tuple[str, ...]
    shape: tuple[int, ...]
    routed: bool
    ones: bool
    float32: bool
    heads: int = 0

    @property
    def stored_shape(self) -> tuple[int, ...]:
        """The shape of the tensor, the outermost size first."""
        return (len(self.names), *self.shape) if self.routed else self.shape


def model_weights(config: Path) -> tuple[Decoder, tuple[Weight, ...]]:
    """Return a model and its weights, as GGUF files hold them.

    Raises
    ------
    ConfigError
        `read_decoder` or `stored` refuses the file.
    RefusedError
        GGUF files of its model type are not written here.
    """
    decoder = read_decoder(config)
    reason = ""
    if decoder.model_type not in ARCHITECTURES:
        reason = f"is of model type {decoder.model_type}, whose GGUF files are not written here"
    elif decoder.window:
        reason = "has a window, which GGUF files of its architecture cannot give"
    if reason:
        remedy = f"Give a model of {', '.join(ARCHITECTURES)} without a window"
        raise RefusedError([Refusal(str(config_file(config)), "", reason, remedy)])
    weights = (weight for matrix in stored(config).weights for weight in _weights(decoder, matrix))
    return decoder, tuple(weights)


def _weights(decoder: Decoder, matrix: Matrix) -> Iterator[Weight]:
    """Yield the tensors of a matrix, one per layer."""
    ending = ".bias" if matrix.name.endswith(".bias") else ".weight"
    name = matrix.name.removesuffix(".bias")
    shape = (matrix.outputs,) if matrix.inputs == 1 else (matrix.outputs, matrix.inputs)
    routed = name.count("*") > 1
    reorders_rows = ARCHITECTURES[decoder.model_type] == "llama"
    for layer in matrix.layers or (None,):
        (tensor,) = tensor_names(decoder.model_type, matrix.name, layer)
        in_layer = name if layer is None else name.replace("*", str(layer), 1)
        names = [in_layer]
        if routed:
            names = [in_layer.replace("*", str(expert), 1) for expert in range(matrix.copies)]
        yield Weight(
            tensor=tensor,
            names=tuple(name + ending for name in names),
            shape=shape,
            routed=routed,
            ones=matrix.kind == "norm",
            float32=len(shape) == 1 or matrix.kind == "router" or matrix.outputs == 1,
            heads=_heads(decoder, name) if reorders_rows else 0,
        )


def _heads(decoder: Decoder, name: str) -> int:
    leaf = name.rpartition(".")[2]
    return {"q_proj": decoder.heads, "k_proj": decoder.kv_heads}.get(leaf, 0)
