"""The weights of a model one by one: what checkpoints and GGUF files call each, and its shapes."""

from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct

from nearfree.decoders.config_file import config_file, read_decoder
from nearfree.decoders.decoder import Decoder
from nearfree.decoders.gguf_tensors import tensor_names
from nearfree.decoders.weights import Matrix, stored
from nearfree.errors import Refusal, RefusedError

WRITTEN = {
    "llama": "llama",
    "mistral": "llama",
    "mixtral": "llama",
    "qwen2": "qwen2",
    "qwen2_moe": "qwen2moe",
    "qwen3": "qwen3",
    "qwen3_moe": "qwen3moe",
}
"""The architecture that GGUF files of a model type name."""


class Weight(Struct, frozen=True, kw_only=True):
    """One tensor of a GGUF file, and the weights of a checkpoint that it holds.

    `names` are those of the checkpoint: one, or that of each expert. `shape` is that of one of
    them, outputs before inputs. `heads` is above 0 where rows are in the order of neighbours.
    """

    tensor: str
    names: tuple[str, ...]
    shape: tuple[int, ...]
    routed: bool
    one: bool
    full: bool
    heads: int = 0

    @property
    def stored_shape(self) -> tuple[int, ...]:
        """The shape of all of them, the outermost size first."""
        return (len(self.names), *self.shape) if self.routed else self.shape


def model_weights(config: Path) -> tuple[Decoder, tuple[Weight, ...]]:
    """Return a model and its weights, as GGUF files hold them.

    Raises
    ------
    ConfigError
        `read_decoder` or `stored` refuses the file.
    RefusedError
        No GGUF file is written here of its model type.
    """
    decoder = read_decoder(config)
    reason = ""
    if decoder.model_type not in WRITTEN:
        reason = f"is of {decoder.model_type}, of which no GGUF file is written here"
    elif decoder.window:
        reason = "has a window, which GGUF files of its architecture do not say"
    if reason:
        remedy = f"Give a model of {', '.join(WRITTEN)} without a window"
        raise RefusedError([Refusal(str(config_file(config)), "", reason, remedy)])
    found = (each for matrix in stored(config).weights for each in _each(decoder, matrix))
    return decoder, tuple(found)


def _each(decoder: Decoder, matrix: Matrix) -> Iterator[Weight]:
    ending = ".bias" if matrix.name.endswith(".bias") else ".weight"
    name = matrix.name.removesuffix(".bias")
    shape = (matrix.outputs,) if matrix.inputs == 1 else (matrix.outputs, matrix.inputs)
    routed = name.count("*") > 1
    turned = WRITTEN[decoder.model_type] == "llama"
    for layer in matrix.layers or (None,):
        (tensor,) = tensor_names(decoder.model_type, matrix.name, layer)
        here = name if layer is None else name.replace("*", str(layer), 1)
        experts = range(matrix.copies) if routed else (None,)
        names = tuple(
            (here if each is None else here.replace("*", str(each), 1)) + ending for each in experts
        )
        yield Weight(
            tensor=tensor,
            names=names,
            shape=shape,
            routed=routed,
            one=matrix.kind == "norm",
            full=len(shape) == 1 or matrix.kind == "router" or matrix.outputs == 1,
            heads=_heads(decoder, name) if turned else 0,
        )


def _heads(decoder: Decoder, name: str) -> int:
    leaf = name.rpartition(".")[2]
    return {"q_proj": decoder.heads, "k_proj": decoder.kv_heads}.get(leaf, 0)
