"""Routers as tensors: which experts each token goes to, and the share of each."""

import torch
from torch import Tensor
from torch.nn import functional

from nearfree.decoders.routers import RouterRule


class Router:
    """A router's weight [E, d_model], and its bias [E] where its rule has one."""

    def __init__(self, rule: RouterRule, top_k: int, weight: Tensor, bias: Tensor | None) -> None:
        self._rule, self._top_k = rule, top_k
        self._weight = weight.float() if rule.scores == "sigmoid" else weight
        self._bias = None if bias is None else bias.float()

    def route(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return the experts of each row, [rows, k], int64, and their shares, float32."""
        if self._rule.scores == "softmax":
            scores = functional.linear(rows, self._weight).softmax(-1, dtype=torch.float32)
        else:
            scores = functional.linear(rows.float(), self._weight).sigmoid()
        ids = self._choice(scores).topk(self._top_k, -1).indices
        shares = scores.gather(1, ids)
        if self._rule.normalised:
            shares = shares / shares.sum(-1, keepdim=True)
        return ids, shares if self._rule.scale == 1.0 else shares * self._rule.scale

    def _choice(self, scores: Tensor) -> Tensor:
        """Return the scores to choose by, those of groups that are not kept being lowest."""
        choice = scores if self._bias is None else scores + self._bias
        rule = self._rule
        if rule.groups == rule.kept_groups:
            return choice
        grouped = choice.unflatten(1, (rule.groups, -1))
        best = grouped.topk(2, -1).values.sum(-1).topk(rule.kept_groups, -1).indices
        dropped = torch.ones_like(grouped[..., 0], dtype=torch.bool).scatter_(1, best, value=False)
        return grouped.masked_fill(dropped.unsqueeze(-1), float("-inf")).flatten(1)
