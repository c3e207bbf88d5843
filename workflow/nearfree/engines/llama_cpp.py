"""llama.cpp through its C interface: a model's weights, and forwards over its KV cache.

A forward is one `llama_decode` of b sequences with N new positions each over L cached ones. The
next forward first removes their keys, so that every forward starts with a cache of L positions.
"""

import ctypes
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from nearfree.engines.forward import CHUNK, random_tokens
from nearfree.engines.library import Library, messages
from nearfree.errors import EvidenceError

SequenceTokens = Mapping[int, tuple[int, Sequence[int]]]
"""The tokens to decode of each sequence: the position of the first, and the tokens."""
_WITH_START = True
"""Whether a text gets the vocabulary's beginning-of-text token."""


class Model:
    """A GGUF file's weights in memory."""

    def __init__(self, library: Library, path: Path, *, repack: bool) -> None:
        """Load a checked file; `repack` becomes `use_extra_bufts`.

        Raises
        ------
        EvidenceError
            llama.cpp does not load it; the message quotes llama.cpp's errors.
        """
        calls = self.calls = library.calls
        parameters = calls.llama_model_default_params()
        parameters.n_gpu_layers = 0
        parameters.use_extra_bufts = repack
        messages.clear()
        self.pointer = calls.llama_model_load_from_file(str(path).encode(), parameters)
        if not self.pointer:
            raise EvidenceError(
                f"llama.cpp does not load {path.name}: {'; '.join(messages[-2:]) or 'no reason'}",
                remedy="Give a GGUF file of a text model that this release knows",
            )
        self._vocab = calls.llama_model_get_vocab(self.pointer)
        self.vocabulary: int = calls.llama_vocab_n_tokens(self._vocab)

    def ends(self, token: int) -> bool:
        """Return whether a token ends a text or a turn."""
        return bool(self.calls.llama_vocab_is_eog(self._vocab, token))

    def ids(self, text: bytes, *, special: bool) -> tuple[int, ...]:
        """Return the tokens of a text.

        Parameters
        ----------
        special
            Whether the text may spell special tokens, such as those of a chat template.
        """
        capacity = len(text) + 16
        buffer = (ctypes.c_int32 * capacity)()
        count = self.calls.llama_tokenize(
            self._vocab, text, len(text), ctypes.addressof(buffer), capacity, _WITH_START, special
        )
        if count < 0:
            raise EvidenceError(
                f"llama.cpp makes more than {capacity} tokens of {len(text)} bytes",
                remedy="Give another prompt",
            )
        return tuple(buffer[:count])

    def close(self) -> None:
        """Free the weights."""
        if self.pointer:
            self.calls.llama_model_free(self.pointer)
            self.pointer = None


class Context:
    """A KV cache of b sequences, and forwards over it.

    Parameters
    ----------
    batch, cached, positions
        b sequences of L cached positions, and the largest N of a forward.
    threads
        The threads of every forward, whatever its positions.
    watch
        Called with a tensor's pointer before and after each operation, as `cb_eval`; a context
        with it is not timed.
    filled
        Whether to fill the cached positions now, with random tokens; otherwise decoded tokens fill
        all L + N positions.
    """

    def __init__(
        self,
        model: Model,
        *,
        batch: int,
        cached: int,
        positions: int,
        threads: int,
        watch: Callable[[int, bool], bool] | None = None,
        filled: bool = True,
    ) -> None:
        self._model, self._calls = model, model.calls
        self.batch, self.cached, self.positions = batch, cached, positions
        rows = max(batch * positions, min(CHUNK, max(batch * cached, 1)))
        parameters = self._calls.llama_context_default_params()
        parameters.n_ctx = batch * (cached + positions)
        parameters.n_batch = parameters.n_ubatch = self.rows = rows
        parameters.n_seq_max = batch
        parameters.n_outputs_max = batch * positions
        parameters.n_threads = parameters.n_threads_batch = threads
        parameters.no_perf = True
        self._watch = None if watch is None else _Watch(lambda t, ask, _data: watch(t, ask))
        if self._watch is not None:
            parameters.cb_eval = ctypes.cast(self._watch, ctypes.c_void_p)
        messages.clear()
        self._pointer = self._calls.llama_init_from_model(model.pointer, parameters)
        if not self._pointer:
            raise EvidenceError(
                f"llama.cpp makes no context of b = {batch}, L = {cached}, N = {positions}: "
                f"{'; '.join(messages[-2:]) or 'no reason'}",
                remedy="Choose a smaller batch or context",
            )
        self._memory = self._calls.llama_get_memory(self._pointer)
        self._batches: dict[int, _Batch] = {}
        self._greedy: Any = None
        self._tokens = random_tokens(batch * (cached + positions), model.vocabulary)
        if filled:
            self._fill()

    def _fill(self) -> None:
        """Decode the cached positions of all sequences, in chunks."""
        for sequence in range(self.batch):
            for start in range(0, self.cached, CHUNK):
                count = min(CHUNK, self.cached - start)
                offset = sequence * self.cached + start
                self._decode(
                    _Batch(self._calls, {sequence: (start, self._tokens[offset : offset + count])})
                )

    def forward(self, n: int) -> None:
        """Run one forward over N new positions of each sequence, with logits at every one.

        Raises
        ------
        EvidenceError
            The context was made for fewer positions.
        """
        if not 1 <= n <= self.positions:
            raise EvidenceError(
                f"a context of {self.positions} positions runs no forward over N = {n}",
                remedy="Make it for the largest N",
            )
        if n not in self._batches:
            offset = self.batch * self.cached
            new_tokens = {
                sequence: (
                    self.cached,
                    self._tokens[offset + sequence * n : offset + n + sequence * n],
                )
                for sequence in range(self.batch)
            }
            self._batches[n] = _Batch(self._calls, new_tokens, range(self.batch * n))
        self.rewind()
        self._decode(self._batches[n])

    def rewind(self) -> None:
        """Remove all but the L cached positions of each sequence."""
        for sequence in range(self.batch):
            self.forget(self.cached, sequence)

    def decode(
        self, tokens: Sequence[int], start: int, *, sequence: int = 0, last_only: bool = False
    ) -> None:
        """Decode tokens of a sequence from a position on, with logits at each or only the last.

        Raises
        ------
        EvidenceError
            The tokens are more than a forward of this context takes.
        """
        outputs = range(len(tokens) - 1 if last_only else 0, len(tokens))
        self._decode(_Batch(self._calls, {sequence: (start, tokens)}, outputs))

    def decode_all(self, sequences: SequenceTokens) -> None:
        """Decode tokens of several sequences in one call, with a row of logits at each."""
        rows = sum(len(tokens) for _, tokens in sequences.values())
        self._decode(_Batch(self._calls, sequences, range(rows)))

    def forget(self, start: int, sequence: int = 0) -> None:
        """Remove a sequence's positions from `start` on.

        Raises
        ------
        EvidenceError
            The model has recurrent layers, whose state cannot drop single positions: `seq_rm` of
            src/llama-memory-recurrent.cpp, line 161, and of llama-memory-hybrid.cpp, line 143, in
            release 3.22.1 of node-llama-cpp.
        """
        if not self._calls.llama_memory_seq_rm(self._memory, sequence, start, -1):
            raise EvidenceError(
                "llama.cpp cannot remove positions from this model's recurrent state, which each "
                "forward and each rejected draft needs",
                remedy="Give a model whose layers all attend: none that is recurrent or hybrid",
            )

    def set_threads(self, count: int) -> None:
        """Set the number of threads of later forwards."""
        self._calls.llama_set_n_threads(self._pointer, count, count)

    def best(self, row: int) -> int:
        """Return the token with the highest logit at a row of the last forward."""
        if self._greedy is None:
            self._greedy = self._calls.llama_sampler_init_greedy()
        return int(self._calls.llama_sampler_sample(self._greedy, self._pointer, row))

    def _decode(self, batch: "_Batch") -> None:
        if batch.struct.n_tokens > self.rows:  # the library would abort the process
            raise EvidenceError(
                f"a context of {self.rows} rows decodes no {batch.struct.n_tokens} at once",
                remedy="Decode them in several calls",
            )
        status = self._calls.llama_decode(self._pointer, batch.struct)
        self._calls.llama_synchronize(self._pointer)
        if status:
            raise EvidenceError(
                f"llama.cpp does not decode {batch.struct.n_tokens} positions (status {status}): "
                f"{'; '.join(messages[-2:])}",
                remedy="Choose fewer positions or a smaller context",
            )

    def logits(self, row: int) -> "ctypes.Array[ctypes.c_float]":
        """Return the logits at a row of the last forward, one per token of the vocabulary."""
        pointer = self._calls.llama_get_logits_ith(self._pointer, row)
        if not pointer:
            raise EvidenceError(
                f"the last forward has no logits at row {row}", remedy="Ask for a smaller row"
            )
        row_type = ctypes.c_float * self._model.vocabulary
        return ctypes.cast(pointer, ctypes.POINTER(row_type)).contents

    def close(self) -> None:
        """Free the cache."""
        if self._greedy is not None:
            self._calls.llama_sampler_free(self._greedy)
            self._greedy = None
        if self._pointer:
            self._calls.llama_free(self._pointer)
            self._pointer = None


_Watch = ctypes.CFUNCTYPE(ctypes.c_bool, ctypes.c_void_p, ctypes.c_bool, ctypes.c_void_p)


class _Batch:
    """A `llama_batch`, with the arrays that it points to."""

    def __init__(self, calls: Any, sequences: SequenceTokens, outputs: Sequence[int] = ()) -> None:
        tokens = [token for _, ids in sequences.values() for token in ids]
        positions = [start + i for start, ids in sequences.values() for i in range(len(ids))]
        count = len(tokens)
        self._ids = [ctypes.c_int32(sequence) for sequence in sequences]
        owners = zip(self._ids, sequences.values(), strict=True)
        self._token = (ctypes.c_int32 * count)(*tokens)
        self._pos = (ctypes.c_int32 * count)(*positions)
        self._n_seq_id = (ctypes.c_int32 * count)(*([1] * count))
        self._seq_id = (ctypes.c_void_p * count)(
            *(ctypes.addressof(sequence_id) for sequence_id, (_, ids) in owners for _ in ids)
        )
        output_rows = set(outputs)
        self._logits = (ctypes.c_int8 * count)(*(i in output_rows for i in range(count)))
        self.struct = calls.struct("llama_batch")(
            n_tokens=count,
            token=ctypes.addressof(self._token),
            embd=None,
            pos=ctypes.addressof(self._pos),
            n_seq_id=ctypes.addressof(self._n_seq_id),
            seq_id=ctypes.addressof(self._seq_id),
            logits=ctypes.addressof(self._logits),
        )
