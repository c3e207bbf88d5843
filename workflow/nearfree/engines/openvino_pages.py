"""Forwards of a compiled OpenVINO model over blocks of a KV cache that are written over again."""

import random
from collections.abc import Sequence
from typing import Any

from nearfree.engines.openvino import Compiled, last_line
from nearfree.errors import EvidenceError

_CHUNK = 512
"""Positions that fill a cache in one call, at most."""
_UNSEEN = 3
"""Tokens at the start of a vocabulary that stand for no text, in most: none of them is run."""
_BLOCK = 32
"""Positions of a block of the CPU's cache; the value cache's shape says it, and is held to it."""


class Pages:
    """A cache of b sequences, and forwards over it.

    Parameters
    ----------
    batch, cached, positions
        b sequences of L cached positions, and the largest N of a forward.
    vocabulary
        Tokens that there are.

    Raises
    ------
    EvidenceError
        The compiled model has another form of cache.
    """

    def __init__(
        self, compiled: Compiled, *, batch: int, cached: int, positions: int, vocabulary: int
    ) -> None:
        self._ov, self._np = compiled.runtime.openvino, compiled.runtime.numpy
        self.batch, self.cached, self.positions = batch, cached, positions
        self._blocks = -(-(cached + positions) // _BLOCK)
        self._request = compiled.model.create_infer_request()
        self._allocate(compiled)
        tokens = random.Random(0)  # noqa: S311 (tokens of no meaning, the same ones each time)
        each = cached + positions
        self._tokens = [
            [tokens.randrange(min(_UNSEEN, vocabulary - 1), vocabulary) for _ in range(each)]
            for _ in range(batch)
        ]
        self._inputs: dict[int, dict[str, Any]] = {}
        for first in range(0, cached, _CHUNK):
            last = min(first + _CHUNK, cached)
            self.run([each[first:last] for each in self._tokens], first)

    def _allocate(self, compiled: Compiled) -> None:
        """Give each layer the blocks of all sequences."""
        self._cache_bytes = 0
        for each in compiled.model.inputs:
            name = each.any_name
            if "cache." not in name:
                continue
            _, *rest = each.partial_shape
            sizes = [size.get_length() for size in rest]
            if name.startswith("value_cache.") and sizes[1] != _BLOCK:
                raise EvidenceError(
                    f"the cache's blocks hold {sizes[1]} positions, not {_BLOCK}",
                    remedy="Measure a release of envs/engines.lock",
                )
            shape = self._ov.Shape([self.batch * self._blocks, *sizes])
            tensor = self._ov.Tensor(each.element_type, shape)
            tensor.data[:] = 0
            self._cache_bytes += tensor.data.nbytes
            self._request.set_tensor(name, tensor)

    def forward(self, n: int) -> None:
        """Run one forward over N new positions of each sequence, with logits at every one.

        Raises
        ------
        EvidenceError
            The cache was made for fewer positions.
        """
        if not 1 <= n <= self.positions:
            raise EvidenceError(
                f"a cache of {self.positions} positions runs no forward over N = {n}",
                remedy="Make it for the largest N",
            )
        if n not in self._inputs:
            new = [each[self.cached : self.cached + n] for each in self._tokens]
            self._inputs[n] = self._tensors(new, self.cached)
        self._infer(self._inputs[n])

    def run(self, tokens: Sequence[Sequence[int]], first: int) -> None:
        """Run as many tokens of each sequence from a position on."""
        self._infer(self._tensors(tokens, first))

    def _infer(self, inputs: dict[str, Any]) -> None:
        for name, tensor in inputs.items():
            self._request.set_tensor(name, tensor)
        try:
            self._request.infer()
        except RuntimeError as error:
            raise EvidenceError(
                f"OpenVINO does not run the forward: {last_line(error)}",
                remedy="Choose fewer positions or a smaller context",
            ) from error

    def _tensors(self, tokens: Sequence[Sequence[int]], first: int) -> dict[str, Any]:
        """Return a forward's inputs: rows one sequence after the other, each with its blocks."""
        n, batch = len(tokens[0]), self.batch
        used = -(-(first + n) // _BLOCK)
        blocks = [s * self._blocks + at for s in range(batch) for at in range(used)]
        values: dict[str, tuple[Any, str]] = {
            "input_ids": ([token for each in tokens for token in each], "int64"),
            "position_ids": (list(range(first, first + n)) * batch, "int64"),
            "past_lens": ([first] * batch, "int32"),
            "subsequence_begins": ([n * at for at in range(batch + 1)], "int32"),
            "block_indices": (blocks, "int32"),
            "block_indices_begins": ([used * at for at in range(batch + 1)], "int32"),
            "max_context_len": (first + n, "int32"),
        }
        return {
            name: self._ov.Tensor(self._np.array(value, dtype=kind))
            for name, (value, kind) in values.items()
        }

    @property
    def position_bytes(self) -> int:
        """Bytes of a cached position in all layers, with its part of what a block shares."""
        return self._cache_bytes // (self.batch * self._blocks * _BLOCK)

    @property
    def logits(self) -> Any:
        """The last forward's logits, [b N, vocabulary]."""
        found = self._request.get_tensor("logits").data
        return found.reshape(-1, found.shape[-1])
