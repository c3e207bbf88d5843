"""llama.cpp decoding, greedily or sampled, with drafts that this project's own loop verifies.

The library exports neither its lookup nor its speculation, which are of its programs; so the loop
over `llama_decode` is ours, and drafts as those do (`core.drafting`).
"""

import ctypes
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from nearfree.backends.builds import build_of
from nearfree.core.batching import taking_turns
from nearfree.core.drafting import (
    LOOKUPS,
    Available,
    Drafting,
    Steps,
    agreed,
    looked_up,
    offers,
    usable,
)
from nearfree.core.memories import Memory, memory_of, next_drafts
from nearfree.engines.files import library_folder
from nearfree.engines.generation import Decoded, GeneratorOptions
from nearfree.engines.library import Library, load
from nearfree.engines.llama_cpp import Context, Model
from nearfree.engines.llama_cpp_sequence import GREEDY, CachedSequence, Choose
from nearfree.errors import ConfigError, EvidenceError
from nearfree.gguf.reader import read_header
from nearfree.log.events import EngineLoaded
from nearfree.models.gguf_forward import matrices_of, shape_of

ENGINE = "llama_cpp"
_ROLE = b"user"
_REPLY = True
"""Whether a chat ends with what begins an assistant's turn."""
_WHOLE = 256
"""Positions up to which the keys of one row are summed in one piece. From 512 keys on several
threads take a part each, of one row alone: `use_split_kv_path` of ggml/src/ggml-cpu/ops.cpp, line
9261. Keys count in whole blocks of 256: `get_n_kv` of src/llama-kv-cache.cpp, line 1255. Both of
release 3.22.1 of node-llama-cpp; 0.3.36 of llama-cpp-python has the same."""
_TILED = 64
"""Rows of a sequence from which on attention runs in tiles, which round otherwise: `use_tiled` of
the same ops.cpp, line 9318, and GGML_FA_TILE_Q of ggml/src/ggml-cpu/common.h, line 9."""


class LlamaCppGenerator:
    """A model in llama.cpp; a context for each way of storing its weights, made when asked for."""

    loop = "own loop over llama_decode"

    def __init__(self, options: GeneratorOptions) -> None:
        self._options = options
        self._build = build_of(ENGINE, options.release)
        folder = library_folder(ENGINE, options.release, self._build)
        self._library: Library = load(folder, self._build)
        self._slots: dict[bool, tuple[CachedSequence, ...]] = {}
        self._drafts: tuple[CachedSequence, ...] = ()
        if options.draft_model is not None:
            self._drafts = self._made(options.draft_model, repack=True)

    def exact(self, threads: int, positions: int, rows: int) -> bool:
        """Return whether attention computes a row alike whatever rows are beside it.

        That products do rests on the kernels of the weights' types; every output is compared.
        """
        return (threads == 1 or positions <= _WHOLE) and rows < _TILED

    def _made(self, path: Path, *, repack: bool) -> tuple[CachedSequence, ...]:
        model = Model(self._library, path, repack=repack)
        positions, rows = self._options.positions, self._options.rows
        batch = self._options.batch
        context = Context(
            model, batch=batch, cached=positions - rows, positions=rows, threads=1, filled=False
        )
        return tuple(CachedSequence(model, context, slot) for slot in range(batch))

    def _all(self, *, repack: bool) -> tuple[CachedSequence, ...]:
        if repack not in self._slots:
            self._slots[repack] = self._made(self._options.model, repack=repack)
        return self._slots[repack]

    def _of(self, *, repack: bool) -> "CachedSequence":
        return self._all(repack=repack)[0]

    def tokens(self, text: str) -> tuple[int, ...]:
        """Return the ids of a user's message, as the model's chat template wraps it."""
        model = self._of(repack=self._options.repack).model
        written, special = chat_text(model, text)
        return model.ids(written, special=special)

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
        """Decode after prompts, in as many slots as the generator has, each up to a limit or end.

        Each step is one call of `llama_decode`; slots take prompts as `core.batching` says.
        """
        slots, drafters = self._all(repack=drafting.repack), self._drafters(drafting)
        slots[0].threads(drafting.threads)
        if drafters:
            drafters[0].threads(drafting.threads)
        texts = [_Text(tuple(prompt), drafting) for prompt in prompts]

        def start(slot: int, number: int) -> None:
            text = texts[number]
            numbers = tuple(draws[number])
            text.choose = Choose(self._options.temperature, numbers, len(text.prompt))
            text.known = [*text.prompt, slots[slot].start(text.prompt, text.choose)]
            if drafters:
                drafters[slot].start(text.prompt)

        def ended(number: int) -> bool:
            text = texts[number]
            return text.made >= limit or slots[0].model.ends(text.known[-1])

        for held in taking_turns(len(texts), len(slots), start, ended):
            running = {slot: texts[each] for slot, each in enumerate(held) if each is not None}
            _step(running, slots, drafters, limit)
        return [text.decoded() for text in texts]

    def _drafters(self, drafting: Drafting) -> tuple[CachedSequence, ...]:
        """Return what drafts for each slot; nothing where no draft model does."""
        if drafting.drafter != "draft_model":
            return ()
        if not self._drafts:
            raise ConfigError("no draft model is given", remedy="Name a GGUF file: --draft-model")
        return self._drafts

    def drafts(self, prompt: Sequence[int], output: Sequence[int], drafting: Drafting) -> Available:
        """Return what a drafter offers over a known output, up to K tokens each time."""
        lookup = drafting.drafter in LOOKUPS
        chosen = [] if lookup else self._drafters(drafting)[0].teach(prompt, output)
        return offers(prompt, output, drafting, chosen)

    def margin(self, tokens: Sequence[int], *, repack: bool) -> float | None:
        """Return by how much the best logit after some tokens leads the second."""
        first, second = sorted(self._of(repack=repack).logits(tokens))[:-3:-1]
        return first - second

    def loaded(self) -> EngineLoaded:
        """Return what is on record of what ran."""
        options, header = self._options, read_header(self._options.model)
        return EngineLoaded(
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
            repack=True,
            matrices=matrices_of(header),
            shape=shape_of(header),
        )

    def close(self) -> None:
        """Give caches and weights back."""
        for slots in (*self._slots.values(), self._drafts):
            if slots:
                slots[0].close()
        self._slots, self._drafts = {}, ()


class _Text:
    """A prompt that is decoded: what is known of its text so far, its steps, and its time."""

    def __init__(self, prompt: tuple[int, ...], drafting: Drafting) -> None:
        self.prompt, self.drafting = prompt, drafting
        self.choose = GREEDY
        self.known: list[int] = []
        self.memory: Memory | None = memory_of(drafting, prompt) if drafting.remembers else None
        self.rows: list[int] = []
        self.accepted: list[int] = []
        self.wall_s = self.process_s = self.draft_s = 0.0

    @property
    def made(self) -> int:
        """Tokens of the output so far."""
        return len(self.known) - len(self.prompt)

    def drafted(self, limit: int, drafter: CachedSequence | None) -> list[int]:
        """Return what is verified of the drafts of a step."""
        drafting, known, left = self.drafting, self.known, limit - self.made
        if drafting.drafter == "none":
            return []
        if drafter is not None:
            return drafter.go_on(known, usable(drafting, drafting.k, len(known), left))
        if self.memory is not None:
            return next_drafts(self.memory, known, left)
        offered = looked_up(known, drafting.k, drafting)
        return list(offered[: usable(drafting, len(offered), len(known), left)])

    def take(self, drafts: Sequence[int], chosen: Sequence[int]) -> None:
        """Take in the tokens that a step chose."""
        taken = agreed(drafts, chosen)
        if self.memory is not None and drafts:
            self.memory.accept(taken)
        self.rows.append(1 + len(drafts))
        self.accepted.append(taken)
        self.known += chosen

    def decoded(self) -> Decoded:
        """Return what came out."""
        return Decoded(
            tokens=tuple(self.known[len(self.prompt) :]),
            steps=Steps(rows=tuple(self.rows), accepted=tuple(self.accepted)),
            wall_s=self.wall_s,
            process_s=self.process_s,
            draft_s=self.draft_s,
        )


def _step(
    running: "Mapping[int, _Text]",
    slots: Sequence[CachedSequence],
    drafters: Sequence[CachedSequence],
    limit: int,
) -> None:
    """Run one step of the texts of some slots, and part its time: their drafting, then by rows."""
    process, wall = time.process_time(), time.perf_counter()
    drafts: dict[int, list[int]] = {}
    for slot, text in running.items():
        drafts[slot] = text.drafted(limit, drafters[slot] if drafters else None)
        process, before = time.process_time(), process
        text.process_s += process - before
        wall, before = time.perf_counter(), wall
        text.wall_s += wall - before
        text.draft_s += wall - before
    parts = {
        slot: (len(text.known) - 1, [text.known[-1], *drafts[slot]])
        for slot, text in running.items()
    }
    slots[0].context.decode_all(parts)
    rows = 0
    for slot, text in running.items():
        text.take(
            drafts[slot], slots[slot].chosen(drafts[slot], rows, len(text.known) - 1, text.choose)
        )
        rows += 1 + len(drafts[slot])
    process, wall = time.process_time() - process, time.perf_counter() - wall
    for text in running.values():
        text.process_s += process * text.rows[-1] / rows
        text.wall_s += wall * text.rows[-1] / rows


def chat_text(model: Model, text: str) -> tuple[bytes, bool]:
    """Return a user's message as the model's chat template writes it, and whether it has one.

    Only templates that the library knows by their text are applied; else the message stays plain.
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
    size = 2 * len(raw) + 4096
    buffer = ctypes.create_string_buffer(size)
    written = calls.llama_chat_apply_template(
        template, ctypes.addressof(message), 1, _REPLY, ctypes.addressof(buffer), size
    )
    if written <= 0:
        return raw, False
    if written > size:
        raise EvidenceError(
            f"the chat template makes {written} bytes of {len(raw)}", remedy="Give a shorter prompt"
        )
    return buffer.raw[:written], True
