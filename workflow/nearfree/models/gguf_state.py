"""The weights of a GGUF file as a forward here asks for them, by Hugging Face's names."""

from collections.abc import Sequence
from pathlib import Path
from typing import cast

import numpy as np
import torch
from torch import Tensor

from nearfree.decoders.gguf_parts import check_gguf
from nearfree.errors import ConfigError
from nearfree.gguf.header import Tensor as StoredTensor
from nearfree.gguf.reader import read_header
from nearfree.gguf.types import PLAIN
from nearfree.models.gguf_names import Weight, model_weights
from nearfree.models.gguf_values import FROM, TO, Stored, to_halves
from nearfree.models.layers import Part, RandomWeights

_MIXTRAL = {
    ".block_sparse_moe.": ".mlp.",
    ".w1.": ".gate_proj.",
    ".w3.": ".up_proj.",
    ".w2.": ".down_proj.",
}
_JOINED = ".experts.gate_up_proj"


class GgufWeights(RandomWeights):
    """The weights of a GGUF file in BF16, F16 or F32, in the place of random ones.

    Tensors are read when they are asked for, and not kept. Rows of queries and keys, which such
    files have in another order, are in that of checkpoints.

    Parameters
    ----------
    dtype, device
        Of the weights of a forward.

    Raises
    ------
    ConfigError
        It is none that is read, its weights are quantised, or are not those of its metadata.
    """

    def __init__(self, path: Path, dtype: torch.dtype, device: str = "cpu") -> None:
        check_gguf(path)
        self._path, self._torch_dtype, self._device = path, dtype, device
        self._tensors = read_header(path).by_name
        _, weights = model_weights(path)
        self._weights: dict[str, tuple[Weight, int]] = {
            _plain(name): (each, place) for each in weights for place, name in enumerate(each.names)
        }

    def __call__(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """Return the weight of a name; ConfigError if the file has none of that shape."""
        if name.endswith(_JOINED):
            return self._experts(name.removesuffix("gate_up_proj"), ("gate_proj", "up_proj"), shape)
        if name.endswith(".experts.down_proj"):
            return self._experts(name.removesuffix("down_proj"), ("down_proj",), shape)
        found = self._read(name)
        if tuple(found.shape) != shape and found.numel() == int(np.prod(shape)):
            found = found.reshape(shape)
        if tuple(found.shape) != shape:
            raise self._wrong(f"has {name} of shape {tuple(found.shape)} in place of {shape}")
        return found

    def joined(self, parts: Sequence[Part]) -> Tensor:
        """Return weights of one input as one product's, first outputs first."""
        return torch.cat([self(*part) for part in parts])

    def _experts(self, at: str, names: tuple[str, ...], shape: tuple[int, ...]) -> Tensor:
        """Return matrices of all experts, [E, outputs, inputs], those of names behind another."""
        parts = (
            torch.stack([self._read(f"{at}{expert}.{name}.weight") for expert in range(shape[0])])
            for name in names
        )
        return torch.cat(list(parts), 1)

    def _read(self, name: str) -> Tensor:
        if name not in self._weights:
            raise self._wrong(f"has no weight {name}")
        weight, place = self._weights[name]
        stored = _data(self._path, self._tensors[weight.tensor], weight, place)
        if weight.heads:
            stored = to_halves(stored, weight.heads)
        values = FROM[self._tensors[weight.tensor].type.name](stored)
        return torch.from_numpy(values.copy()).to(self._device, self._torch_dtype)

    def _wrong(self, what: str) -> ConfigError:
        return ConfigError(f"{self._path} {what}", remedy="Give the file of the same model")


def _plain(name: str) -> str:
    """Return the name that most model types have for a weight of experts, given Mixtral's."""
    for theirs, ours in _MIXTRAL.items():
        name = name.replace(theirs, ours)
    return name


def _data(path: Path, tensor: StoredTensor, weight: Weight, place: int) -> Stored:
    """Return the data of one weight of a tensor, of which experts have several."""
    if tensor.type.name not in PLAIN:
        raise ConfigError(
            f"{path} has {tensor.name} in {tensor.type.name}, which is not read here",
            remedy="Give the file in BF16, F16 or F32",
        )
    kind = np.dtype(TO[tensor.type.name][0])
    count = int(np.prod(weight.shape))
    offset = tensor.offset + place * count * kind.itemsize
    read = np.fromfile(path, dtype=kind, count=count, offset=offset)
    if len(read) < count:
        raise ConfigError(
            f"{path} grew shorter while it was read", remedy="Leave it as it is meanwhile"
        )
    return cast("Stored", read.reshape(weight.shape))
