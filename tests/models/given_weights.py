"""A forward's weights from a mapping, to compare it with other implementations."""

from collections.abc import Mapping, Sequence

import torch
from nearfree.errors import ConfigError
from nearfree.models.layers import Part
from torch import Tensor


class GivenWeights:
    """The weights of a mapping, such as a `state_dict` of transformers."""

    def __init__(
        self, tensors: Mapping[str, Tensor], dtype: torch.dtype, device: str = "cpu"
    ) -> None:
        self._tensors, self._dtype, self._device = tensors, dtype, device

    def __call__(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """Return a weight; ConfigError if there is none of its name, or one of another shape."""
        tensor = self._tensors.get(name)
        if tensor is None:
            raise ConfigError(f"no weight {name}", remedy="Give the weights of the same model")
        if tuple(tensor.shape) != shape:
            raise ConfigError(
                f"the weight {name} has the shape {tuple(tensor.shape)} in place of {shape}",
                remedy="Give the weights of the same model",
            )
        return tensor.detach().to(self._device, self._dtype)

    def joined(self, parts: Sequence[Part]) -> Tensor:
        """Return weights of one input as one tensor."""
        tensors = [self(*part) for part in parts]
        return tensors[0] if len(tensors) == 1 else torch.cat(tensors)
