"""The weights of a GGUF file for a forward here, by Hugging Face's names."""

from collections.abc import Sequence
from pathlib import Path
from typing import cast

import numpy as np
import torch
from nearfree.decoders.gguf_files.parts import check_gguf
from nearfree.errors import ConfigError
from nearfree.gguf.header import Tensor as StoredTensor
from nearfree.gguf.reader import read_header
from nearfree.gguf.types import PLAIN
from nearfree.models.gguf_names import Weight, model_weights
from nearfree.models.gguf_values import LOAD, STORE, StoredArray
from nearfree.models.layers import Part, RandomWeights
from torch import Tensor

_MIXTRAL = {
    ".block_sparse_moe.": ".mlp.",
    ".w1.": ".gate_proj.",
    ".w3.": ".up_proj.",
    ".w2.": ".down_proj.",
}
_JOINED = ".experts.gate_up_proj"


class GgufWeights(RandomWeights):
    """The weights of a GGUF file in BF16, F16 or F32, instead of random ones.

    Tensors are read on each call and not kept. The rows of queries and keys, which such files
    reorder, are returned in the order of checkpoints.

    Parameters
    ----------
    path
        The file.
    dtype, device
        Dtype and device of the weights of the forward.

    Raises
    ------
    ConfigError
        The file is not read, its weights are quantised, or they are not those that its metadata
        imply.
    """

    def __init__(self, path: Path, dtype: torch.dtype, device: str = "cpu") -> None:
        check_gguf(path)
        self._path, self._torch_dtype, self._device = path, dtype, device
        self._tensors = read_header(path).by_name
        _, weights = model_weights(path)
        self._weights: dict[str, tuple[Weight, int]] = {
            _usual_name(name): (weight, index)
            for weight in weights
            for index, name in enumerate(weight.names)
        }

    def __call__(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """Return the weight of a name; ConfigError if the file has none of that shape."""
        if name.endswith(_JOINED):
            return self._experts(name.removesuffix("gate_up_proj"), ("gate_proj", "up_proj"), shape)
        if name.endswith(".experts.down_proj"):
            return self._experts(name.removesuffix("down_proj"), ("down_proj",), shape)
        weight = self._read(name)
        if tuple(weight.shape) != shape and weight.numel() == int(np.prod(shape)):
            weight = weight.reshape(shape)
        if tuple(weight.shape) != shape:
            raise self._wrong(f"has {name} of shape {tuple(weight.shape)} instead of {shape}")
        return weight

    def joined(self, parts: Sequence[Part]) -> Tensor:
        """Return weights with the same input, concatenated along their outputs."""
        return torch.cat([self(*part) for part in parts])

    def _experts(self, prefix: str, names: tuple[str, ...], shape: tuple[int, ...]) -> Tensor:
        """Return the matrices of all experts, [E, outputs, inputs], concatenated over names."""
        parts = (
            torch.stack(
                [self._read(f"{prefix}{expert}.{name}.weight") for expert in range(shape[0])]
            )
            for name in names
        )
        return torch.cat(list(parts), 1)

    def _read(self, name: str) -> Tensor:
        if name not in self._weights:
            raise self._wrong(f"has no weight {name}")
        weight, index = self._weights[name]
        stored = _data(self._path, self._tensors[weight.tensor], weight, index)
        if weight.heads:
            stored = to_halves(stored, weight.heads)
        values = LOAD[self._tensors[weight.tensor].type.name](stored)
        return torch.from_numpy(values.copy()).to(self._device, self._torch_dtype)

    def _wrong(self, what: str) -> ConfigError:
        return ConfigError(f"{self._path} {what}", remedy="Give the file of the same model")


def to_halves(rows: StoredArray, heads: int) -> StoredArray:
    """Return rows in a checkpoint's order, given rows in the order of `to_neighbours`."""
    pairs = rows.reshape(heads, len(rows) // heads // 2, 2, *rows.shape[1:])
    return pairs.swapaxes(1, 2).reshape(rows.shape)


def _usual_name(name: str) -> str:
    """Return the usual name of a weight of experts, given Mixtral's."""
    for mixtral, usual in _MIXTRAL.items():
        name = name.replace(mixtral, usual)
    return name


def _data(path: Path, tensor: StoredTensor, weight: Weight, index: int) -> StoredArray:
    """Return the data of the weight at `index` within a tensor; experts share a tensor."""
    if tensor.type.name not in PLAIN:
        raise ConfigError(
            f"{path} has {tensor.name} in {tensor.type.name}, which is not read here",
            remedy="Give the file in BF16, F16 or F32",
        )
    dtype = np.dtype(STORE[tensor.type.name][0])
    count = int(np.prod(weight.shape))
    offset = tensor.offset + index * count * dtype.itemsize
    values = np.fromfile(path, dtype=dtype, count=count, offset=offset)
    if len(values) < count:
        raise ConfigError(
            f"{path} grew shorter while it was read", remedy="Leave it as it is meanwhile"
        )
    return cast("StoredArray", values.reshape(weight.shape))
