"""Forwards of a compiled OpenVINO model over a paged KV cache that each forward overwrites."""

from collections.abc import Sequence
from typing import Any

from nearfree.engines.forward import CHUNK, random_tokens
from nearfree.engines.openvino import Compiled, last_line
from nearfree.errors import EvidenceError

_BLOCK = 32
"""Positions per block of the CPU's cache; the value cache's shape is checked against it."""


class Pages:
    """A paged KV cache of b sequences, and forwards over it.

    Parameters
    ----------
    batch, cached, positions
        b sequences of L cached positions, and the largest N of a forward.
    vocabulary
        Number of tokens in the vocabulary.

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
        length = cached + positions
        tokens = random_tokens(batch * length, vocabulary)
        self._tokens = [tokens[start : start + length] for start in range(0, len(tokens), length)]
        self._inputs: dict[int, dict[str, Any]] = {}
        for start in range(0, cached, CHUNK):
            end = min(start + CHUNK, cached)
            self.run([sequence[start:end] for sequence in self._tokens], start)

    def _allocate(self, compiled: Compiled) -> None:
        """Allocate each layer's blocks for all sequences."""
        self._cache_bytes = 0
        for port in compiled.model.inputs:
            name = port.any_name
            if "cache." not in name:
                continue
            _, *dims = port.partial_shape
            sizes = [size.get_length() for size in dims]
            if name.startswith("value_cache.") and sizes[1] != _BLOCK:
                raise EvidenceError(
                    f"the cache's blocks hold {sizes[1]} positions, not {_BLOCK}",
                    remedy="Measure a release of envs/engines.lock",
                )
            shape = self._ov.Shape([self.batch * self._blocks, *sizes])
            tensor = self._ov.Tensor(port.element_type, shape)
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
            new = [sequence[self.cached : self.cached + n] for sequence in self._tokens]
            self._inputs[n] = self._tensors(new, self.cached)
        self._infer(self._inputs[n])

    def run(self, tokens: Sequence[Sequence[int]], start: int) -> None:
        """Run equally many tokens of each sequence from a position on."""
        self._infer(self._tensors(tokens, start))

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

    def _tensors(self, tokens: Sequence[Sequence[int]], start: int) -> dict[str, Any]:
        """Return a forward's inputs: the sequences' rows one after the other, and their blocks."""
        n, batch = len(tokens[0]), self.batch
        blocks_per_sequence = -(-(start + n) // _BLOCK)
        blocks = [
            sequence_index * self._blocks + index
            for sequence_index in range(batch)
            for index in range(blocks_per_sequence)
        ]
        values: dict[str, tuple[Any, str]] = {
            "input_ids": ([token for sequence in tokens for token in sequence], "int64"),
            "position_ids": (list(range(start, start + n)) * batch, "int64"),
            "past_lens": ([start] * batch, "int32"),
            "subsequence_begins": ([n * index for index in range(batch + 1)], "int32"),
            "block_indices": (blocks, "int32"),
            "block_indices_begins": (
                [blocks_per_sequence * index for index in range(batch + 1)],
                "int32",
            ),
            "max_context_len": (start + n, "int32"),
        }
        return {
            name: self._ov.Tensor(self._np.array(value, dtype=dtype))
            for name, (value, dtype) in values.items()
        }

    @property
    def position_bytes(self) -> int:
        """Bytes of a cached position in all layers, with its share of per-block bytes."""
        return self._cache_bytes // (self.batch * self._blocks * _BLOCK)

    @property
    def logits(self) -> Any:
        """The last forward's logits, [b N, vocabulary]."""
        data = self._request.get_tensor("logits").data
        return data.reshape(-1, data.shape[-1])
