"""A MoE layer with random weights, and what its forward gives in float64."""

import torch
from torch import Tensor
from torch.nn.functional import silu


class Layer:
    """Gated experts: `w1` [E, 2 d_ff, d_model], gate over up; `w2` [E, d_model, d_ff]."""

    def __init__(self, experts: int, d_model: int, d_ff: int, dtype: torch.dtype) -> None:
        self._random = torch.Generator().manual_seed(experts)
        self.dtype = dtype
        self.w1 = self._normal(experts, 2 * d_ff, d_model) / d_model**0.5
        self.w2 = self._normal(experts, d_model, d_ff) / d_ff**0.5

    def tokens(self, count: int) -> Tensor:
        """Return inputs, [count, d_model]."""
        return self._normal(count, self.w1.shape[2])

    def weights(self, ids: Tensor) -> Tensor:
        """Return how much each expert of a token counts, in float32."""
        return torch.rand(ids.shape, generator=self._random)

    def reference(self, x: Tensor, weights: Tensor, ids: Tensor) -> Tensor:
        """Return the forward in float64, one expert at a time, without padding."""
        out = torch.zeros(x.shape, dtype=torch.float64)
        for expert in ids.unique():
            token, slot = (ids == expert).nonzero(as_tuple=True)
            gate, up = (x[token].double() @ self.w1[expert].double().T).chunk(2, dim=1)
            part = (silu(gate) * up) @ self.w2[expert].double().T
            out.index_add_(0, token, part * weights[token, slot, None].double())
        return out

    def _normal(self, *shape: int) -> Tensor:
        return torch.randn(shape, generator=self._random).to(self.dtype)
