"""llama.cpp decoding, greedily or sampled, with drafts that this project's own loop verifies.

Lookup and speculation are in llama.cpp's programs, and its library does not export them. So the
loop over `llama_decode` is this project's, and drafts as those programs do (`core.drafting`).
"""

import ctypes
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from nearfree.backends.builds import build_of
from nearfree.core.batching import slot_schedule
from nearfree.core.drafting import (
    LOOKUPS,
    Available,
    Drafting,
    Steps,
    agreed_length,
    lookup_draft,
    trace_offers,
    verified_drafts,
)
from nearfree.core.memories import Memory, memory_of, next_drafts
from nearfree.engines.files import library_folder
from nearfree.engines.generation import Decoded, GeneratorOptions
from nearfree.engines.library import Library, load
from nearfree.engines.llama_cpp import Context, Model
from nearfree.engines.llama_cpp_sequence import GREEDY, CachedSequence, TokenChoice
from nearfree.errors import ConfigError, EvidenceError
from nearfree.gguf.reader import read_header
from nearfree.log.events import EngineLoaded
from nearfree.models.gguf_forward import matrices_of, shape_of

ENGINE = "llama_cpp"
_ROLE = b"user"
_REPLY = True
"""Whether a chat ends with the start of an assistant's turn."""
_SINGLE_PIECE_KEYS = 256
"""Positions up to which attention sums the keys of a single row in one piece. From 512 keys on it
splits the keys of a single row over threads: `use_split_kv_path` of ggml/src/ggml-cpu/ops.cpp, line
9261. Keys are counted in whole blocks of 256: `get_n_kv` of src/llama-kv-cache.cpp, line 1255. Both
of release 3.22.1 of node-llama-cpp; 0.3.36 of llama-cpp-python has the same."""
_TILED_ROWS = 64
"""Rows of a sequence from which on attention runs in tiles, with other rounding: `use_tiled` of the
same ops.cpp, line 9318, and GGML_FA_TILE_Q of ggml/src/ggml-cpu/common.h, line 9."""


class LlamaCppGenerator:
    """A model in llama.cpp, with one context per layout of its weights, created on first use."""

    loop = "own loop over llama_decode"

    def __init__(self, options: GeneratorOptions) -> None:
        self._options = options
        self._build = build_of(ENGINE, options.release)
        folder = library_folder(ENGINE, options.release, self._build)
        self._library: Library = load(folder, self._build)
        self._slots: dict[bool, tuple[CachedSequence, ...]] = {}
        self._drafts: tuple[CachedSequence, ...] = ()
        if options.draft_model is not None:
            self._drafts = self._sequences(options.draft_model, repack=True)

    def exact(self, threads: int, positions: int, rows: int) -> bool:
        """Return whether attention's result for a row is independent of the other rows.

        For products this depends on the kernels of the weights' types; every output is compared.
        """
        return (threads == 1 or positions <= _SINGLE_PIECE_KEYS) and rows < _TILED_ROWS

    def _sequences(self, path: Path, *, repack: bool) -> tuple[CachedSequence, ...]:
        """Load a file's weights and return a sequence per slot of a new context."""
        model = Model(self._library, path, repack=repack)
        positions, rows = self._options.positions, self._options.rows
        batch = self._options.batch
        context = Context(
            model, batch=batch, cached=positions - rows, positions=rows, threads=1, filled=False
        )
        return tuple(CachedSequence(model, context, slot) for slot in range(batch))

    def _sequences_of(self, *, repack: bool) -> tuple[CachedSequence, ...]:
        """Return the model's sequences for a layout of its weights, loaded on first use."""
        if repack not in self._slots:
            self._slots[repack] = self._sequences(self._options.model, repack=repack)
        return self._slots[repack]

    def _first_sequence(self, *, repack: bool) -> "CachedSequence":
        return self._sequences_of(repack=repack)[0]

    def tokens(self, text: str) -> tuple[int, ...]:
        """Return the token ids of a user's message in the model's chat template."""
        model = self._first_sequence(repack=self._options.repack).model
        chat, special = chat_text(model, text)
        return model.ids(chat, special=special)

    def decode(
        self, prompt: Sequence[int], drafting: Drafting, limit: int, draws: Sequence[float] = ()
    ) -> Decoded:
        """Decode after a prompt, up to `limit` tokens or the end of text."""
        (decoded,) = self.decode_all([prompt], drafting, limit, [draws])
        return decoded

    def decode_all(
        self,
        prompts: Sequence[Sequence[int]],
        drafting: Drafting,
        limit: int,
        draws: Sequence[Sequence[float]],
    ) -> list[Decoded]:
        """Decode after several prompts, each up to `limit` tokens or the end of text.

        Each step is one call of `llama_decode` over all slots; `core.batching` assigns prompts to
        slots.
        """
        slots, drafters = self._sequences_of(repack=drafting.repack), self._drafters(drafting)
        slots[0].context.set_threads(drafting.threads)
        if drafters:
            drafters[0].context.set_threads(drafting.threads)
        requests = [_Request(tuple(prompt), drafting) for prompt in prompts]

        def start(slot: int, index: int) -> None:
            request = requests[index]
            request_draws = tuple(draws[index])
            request.choice = TokenChoice(
                self._options.temperature, request_draws, len(request.prompt)
            )
            request.tokens = [*request.prompt, slots[slot].start(request.prompt, request.choice)]
            if drafters:
                drafters[slot].start(request.prompt)

        def ended(index: int) -> bool:
            request = requests[index]
            return request.output_length >= limit or slots[0].model.ends(request.tokens[-1])

        for assigned in slot_schedule(len(requests), len(slots), start, ended):
            running = {
                slot: requests[index] for slot, index in enumerate(assigned) if index is not None
            }
            _step(running, slots, drafters, limit)
        return [request.decoded() for request in requests]

    def _drafters(self, drafting: Drafting) -> tuple[CachedSequence, ...]:
        """Return the draft model's sequence for each slot; empty without a draft model."""
        if drafting.drafter != "draft_model":
            return ()
        if not self._drafts:
            raise ConfigError("no draft model is given", remedy="Name a GGUF file: --draft-model")
        return self._drafts

    def drafts(self, prompt: Sequence[int], output: Sequence[int], drafting: Drafting) -> Available:
        """Return the drafts for each position of a known output, up to K tokens each."""
        lookup = drafting.drafter in LOOKUPS
        draft_choices = [] if lookup else self._drafters(drafting)[0].choices_after(prompt, output)
        return trace_offers(prompt, output, drafting, draft_choices)

    def margin(self, tokens: Sequence[int], drafting: Drafting) -> float | None:
        """Return the difference of the two highest logits after some tokens."""
        best, runner_up = sorted(self._first_sequence(repack=drafting.repack).logits(tokens))[
            :-3:-1
        ]
        return best - runner_up

    def loaded(self, runs: Iterable[Drafting]) -> list[EngineLoaded]:
        """Return events with the engine, its library and its model, one per storage of weights."""
        options, header = self._options, read_header(self._options.model)
        return [
            EngineLoaded(
                engine=ENGINE,
                release=options.release,
                package=self._build.package,
                library_sha256=self._library.files,
                header_sha256=self._build.abi.headers,
                system_info=self._library.system_info,
                model=options.name,
                weights_sha256=options.sha256,
                weights_bytes=header.file_bytes,
                file_type=options.file_type,
                repack=repack,
                matrices=matrices_of(header),
                shape=shape_of(header),
            )
            for repack in sorted({run.repack for run in runs}, reverse=True)
        ]

    def close(self) -> None:
        """Free caches and weights."""
        for slots in (*self._slots.values(), self._drafts):
            if slots:
                slots[0].close()
        self._slots, self._drafts = {}, ()


class _Request:
    """A prompt being decoded: its tokens so far, prompt included, its steps, and its times."""

    def __init__(self, prompt: tuple[int, ...], drafting: Drafting) -> None:
        self.prompt, self.drafting = prompt, drafting
        self.choice = GREEDY
        self.tokens: list[int] = []
        self.memory: Memory | None = memory_of(drafting, prompt) if drafting.remembers else None
        self.rows: list[int] = []
        self.accepted: list[int] = []
        self.wall_s = self.process_s = self.draft_s = 0.0

    @property
    def output_length(self) -> int:
        """The number of output tokens so far."""
        return len(self.tokens) - len(self.prompt)

    def propose(self, limit: int, drafter: CachedSequence | None) -> list[int]:
        """Return the drafts that the next step verifies."""
        drafting, tokens, remaining = self.drafting, self.tokens, limit - self.output_length
        if drafting.drafter == "none":
            return []
        if drafter is not None:
            return drafter.draft(
                tokens, verified_drafts(drafting, drafting.k, len(tokens), remaining)
            )
        if self.memory is not None:
            return next_drafts(self.memory, tokens, remaining)
        offered = lookup_draft(tokens, drafting.k, drafting)
        return list(offered[: verified_drafts(drafting, len(offered), len(tokens), remaining)])

    def accept(self, drafts: Sequence[int], chosen: Sequence[int]) -> None:
        """Record the tokens that a step chose, and how many of them were drafted."""
        accepted = agreed_length(drafts, chosen)
        if self.memory is not None and drafts:
            self.memory.accept(accepted)
        self.rows.append(1 + len(drafts))
        self.accepted.append(accepted)
        self.tokens += chosen

    def decoded(self) -> Decoded:
        """Return the output with its steps and times."""
        return Decoded(
            tokens=tuple(self.tokens[len(self.prompt) :]),
            steps=Steps(rows=tuple(self.rows), accepted=tuple(self.accepted)),
            wall_s=self.wall_s,
            process_s=self.process_s,
            draft_s=self.draft_s,
        )


def _step(
    running: "Mapping[int, _Request]",
    slots: Sequence[CachedSequence],
    drafters: Sequence[CachedSequence],
    limit: int,
) -> None:
    """Run one step of the requests in some slots, and divide its time among them.

    Each request gets its own drafting time, and a share of the forward by its rows.
    """
    process_s, wall_s = time.process_time(), time.perf_counter()
    drafts: dict[int, list[int]] = {}
    for slot, request in running.items():
        drafts[slot] = request.propose(limit, drafters[slot] if drafters else None)
        process_s, previous_s = time.process_time(), process_s
        request.process_s += process_s - previous_s
        wall_s, previous_s = time.perf_counter(), wall_s
        request.wall_s += wall_s - previous_s
        request.draft_s += wall_s - previous_s
    rows_by_slot = {
        slot: (len(request.tokens) - 1, [request.tokens[-1], *drafts[slot]])
        for slot, request in running.items()
    }
    slots[0].context.decode_all(rows_by_slot)
    rows = 0
    for slot, request in running.items():
        request.accept(
            drafts[slot],
            slots[slot].chosen(drafts[slot], rows, len(request.tokens) - 1, request.choice),
        )
        rows += 1 + len(drafts[slot])
    process_s, wall_s = time.process_time() - process_s, time.perf_counter() - wall_s
    for request in running.values():
        request.process_s += process_s * request.rows[-1] / rows
        request.wall_s += wall_s * request.rows[-1] / rows


def chat_text(model: Model, text: str) -> tuple[bytes, bool]:
    """Return a user's message in the model's chat template, and whether a template was applied.

    The library applies only the templates that it recognises; otherwise the message is unchanged.
    """
    calls = model.calls
    template = calls.llama_model_chat_template(model.pointer, None)
    raw = text.encode()
    if not template:
        return raw, False
    content = ctypes.create_string_buffer(raw)
    role = ctypes.create_string_buffer(_ROLE)
    message = calls.struct("llama_chat_message")(
        role=ctypes.addressof(role), content=ctypes.addressof(content)
    )
    capacity = 2 * len(raw) + 4096
    buffer = ctypes.create_string_buffer(capacity)
    size_written = calls.llama_chat_apply_template(
        template, ctypes.addressof(message), 1, _REPLY, ctypes.addressof(buffer), capacity
    )
    if size_written <= 0:
        return raw, False
    if size_written > capacity:
        raise EvidenceError(
            f"the chat template makes {size_written} bytes of {len(raw)}",
            remedy="Give a shorter prompt",
        )
    return buffer.raw[:size_written], True
