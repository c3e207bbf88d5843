"""llama.cpp decoding, greedily or sampled, with drafts that this project's own loop verifies.

The library exports neither its lookup nor its speculation, which are of its programs; so the loop
over `llama_decode` is ours, and drafts as those do (`core.drafting`).
"""

import ctypes
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from nearfree.backends.builds import build_of
from nearfree.core.drafting import LOOKUPS, Available, Drafting, Steps, agreed, looked_up, usable
from nearfree.core.memories import Memory, memory_of, next_drafts
from nearfree.core.sampling import drawn
from nearfree.engines.files import library_folder
from nearfree.engines.generation import Decoded, GeneratorOptions
from nearfree.engines.library import Library, load
from nearfree.engines.llama_cpp import Context, Model
from nearfree.errors import ConfigError, EvidenceError
from nearfree.gguf.reader import read_header
from nearfree.log.events import EngineLoaded
from nearfree.models.gguf_forward import matrices_of, shape_of

ENGINE = "llama_cpp"
_ROLE = b"user"
_REPLY = True
"""Whether a chat ends with what begins an assistant's turn."""


class LlamaCppGenerator:
    """A model in llama.cpp; one context for each way of storing its weights, made when asked for.

    `exact` holds as far as the kernels of the weights' types compute a row alike whatever rows are
    beside it; every output is compared.
    """

    exact = True
    loop = "own loop over llama_decode"

    def __init__(self, options: GeneratorOptions) -> None:
        self._options = options
        self._build = build_of(ENGINE, options.release)
        folder = library_folder(ENGINE, options.release, self._build)
        self._library: Library = load(folder, self._build)
        self._sequences: dict[bool, _Sequence] = {}
        self._draft: _Sequence | None = None
        if options.draft_model is not None:
            self._draft = self._made(options.draft_model, repack=True)

    def _made(self, path: Path, *, repack: bool) -> "_Sequence":
        return _Sequence(
            Model(self._library, path, repack=repack),
            positions=self._options.positions,
            rows=self._options.rows,
        )

    def _of(self, *, repack: bool) -> "_Sequence":
        if repack not in self._sequences:
            self._sequences[repack] = self._made(self._options.model, repack=repack)
        return self._sequences[repack]

    def tokens(self, text: str) -> tuple[int, ...]:
        """Return the ids of a user's message, as the model's chat template wraps it."""
        model = self._of(repack=True).model
        written, special = chat_text(model, text)
        return model.ids(written, special=special)

    def decode(
        self, prompt: Sequence[int], drafting: Drafting, limit: int, draws: Sequence[float] = ()
    ) -> Decoded:
        """Decode after a prompt, up to `limit` tokens or the end of text."""
        target = self._of(repack=drafting.repack)
        target.threads(drafting.threads)
        choose = _Choose(self._options.temperature, tuple(draws), len(prompt))
        tokens = [target.start(prompt, choose)]
        drafter = self._drafter(drafting)
        if drafter is not None:
            drafter.threads(drafting.threads)
            drafter.start(prompt)
        memory = memory_of(drafting, prompt) if drafting.remembers else None
        rows, accepted, draft_s = [], [], 0.0
        known = list(prompt) + tokens
        process, began = time.process_time(), time.perf_counter()
        while len(tokens) < limit and not target.model.ends(tokens[-1]):
            asked = time.perf_counter()
            drafts = self._drafts(known, drafting, limit - len(tokens), drafter or memory)
            draft_s += time.perf_counter() - asked
            chosen = target.verify(known[-1], drafts, len(known) - 1, choose)
            taken = agreed(drafts, chosen)
            if memory is not None and drafts:
                memory.accept(taken)
            rows.append(1 + len(drafts))
            accepted.append(taken)
            tokens += chosen
            known += chosen
        wall_s = time.perf_counter() - began
        process_s = time.process_time() - process
        return Decoded(
            tokens=tuple(tokens),
            steps=Steps(rows=tuple(rows), accepted=tuple(accepted)),
            wall_s=wall_s,
            process_s=process_s,
            draft_s=draft_s,
        )

    def _drafter(self, drafting: Drafting) -> "_Sequence | None":
        if drafting.drafter != "draft_model":
            return None
        if self._draft is None:
            raise ConfigError("no draft model is given", remedy="Name a GGUF file: --draft-model")
        return self._draft

    def _drafts(
        self,
        known: Sequence[int],
        drafting: Drafting,
        left: int,
        drafter: "_Sequence | Memory | None",
    ) -> list[int]:
        if drafting.drafter == "none":
            return []
        if isinstance(drafter, _Sequence):
            return drafter.go_on(known, usable(drafting, drafting.k, len(known), left))
        if drafter is not None:
            return next_drafts(drafter, known, left)
        offered = looked_up(known, drafting.k, drafting)
        return list(offered[: usable(drafting, len(offered), len(known), left)])

    def drafts(self, prompt: Sequence[int], output: Sequence[int], drafting: Drafting) -> Available:
        """Return what a drafter offers over a known output, up to K tokens each time."""
        offered, right = [], []
        if drafting.drafter in LOOKUPS:
            for done in range(1, len(output)):
                drafts = looked_up([*prompt, *output[:done]], drafting.k, drafting)
                offered.append(len(drafts))
                right.append(agreed(drafts, output[done:]))
        else:
            drafter = self._drafter(drafting)
            chosen = drafter.teach(prompt, output) if drafter else []
            for done in range(1, len(output)):
                offered.append(drafting.k)
                right.append(agreed(chosen[done - 1 : done - 1 + drafting.k], output[done:]))
        return Available(
            prompt_tokens=len(prompt),
            longest=drafting.k,
            drafted=tuple(offered),
            agreed=tuple(right),
        )

    def margin(self, tokens: Sequence[int]) -> float | None:
        """Return by how much the best logit after some tokens leads the second."""
        first, second = sorted(self._of(repack=True).logits(tokens))[:-3:-1]
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
        held = [*self._sequences.values(), *([self._draft] if self._draft else [])]
        for sequence in held:
            sequence.close()
        self._sequences, self._draft = {}, None


class _Choose(NamedTuple):
    """How tokens of an output are chosen: drawn by numbers after a prompt, or else the best."""

    temperature: float = 0.0
    draws: tuple[float, ...] = ()
    prompt: int = 0
    """Its tokens."""

    def token(self, context: Context, row: int, place: int) -> int:
        """Return the token after the position `place`, whose logits stand in a row."""
        if not self.draws:
            return context.best(row)
        from numpy import ctypeslib

        logits = ctypeslib.as_array(context.logits(row))
        return drawn(logits, self.temperature, self.draws[place + 1 - self.prompt])


_GREEDY = _Choose()


class _Sequence:
    """A model with the cache of one sequence, which a prompt stays in until another one comes."""

    def __init__(self, model: Model, *, positions: int, rows: int) -> None:
        self.model = model
        self.context = Context(
            model, batch=1, cached=positions - rows, positions=rows, threads=1, filled=False
        )
        self._prompt: tuple[object, ...] = ()
        self._first = 0
        self._held: list[int] = []

    def threads(self, many: int) -> None:
        """Set the threads of the forwards to come."""
        self.context.set_threads(many)

    def start(self, prompt: Sequence[int], choose: _Choose = _GREEDY) -> int:
        """Return the first token after a prompt, whose forward is not run again if it is held."""
        asked = (tuple(prompt), choose)
        if asked != self._prompt:
            self._prompt = ()
            self.context.forget(0)
            last = self._fill(prompt)
            self._first = choose.token(self.context, last, len(prompt) - 1)
            self._prompt = asked
        self.context.forget(len(prompt))
        self._held = list(prompt)
        return self._first

    def _fill(self, tokens: Sequence[int]) -> int:
        """Decode tokens from the first position on; return the row of the last one's logits."""
        last = 0
        for first in range(0, len(tokens), self.context.rows):
            part = tokens[first : first + self.context.rows]
            self.context.decode(part, first, last_only=True)
            last = len(part) - 1
        return last

    def logits(self, tokens: Sequence[int]) -> list[float]:
        """Return the logits after some tokens, whose forward is run anew."""
        self._prompt = ()
        self.context.forget(0)
        return list(self.context.logits(self._fill(tokens)))

    def verify(self, token: int, drafts: Sequence[int], place: int, choose: _Choose) -> list[int]:
        """Return the tokens that a forward over a token and its drafts chooses, up to an end.

        Parameters
        ----------
        place
            The position of the token.
        """
        self.context.decode([token, *drafts], place)
        chosen: list[int] = []
        for row in range(1 + len(drafts)):
            chosen.append(choose.token(self.context, row, place + row))
            if row == len(drafts) or chosen[-1] != drafts[row] or self.model.ends(chosen[-1]):
                break
        if len(chosen) < 1 + len(drafts):
            self.context.forget(place + len(chosen))
        return chosen

    def go_on(self, known: Sequence[int], many: int) -> list[int]:
        """Return the next tokens of a draft model, whose cache follows what is known."""
        kept = agreed(self._held, known)
        del self._held[kept:]
        self.context.forget(kept)
        drafts: list[int] = []
        new = list(known[kept:])
        while len(drafts) < many:
            self.context.decode(new, len(self._held), last_only=True)
            self._held += new
            drafts.append(self.context.best(len(new) - 1))
            new = drafts[-1:]
        return drafts

    def teach(self, prompt: Sequence[int], output: Sequence[int]) -> list[int]:
        """Return what the model chooses after each token of a known output but the last."""
        self.start(prompt)
        chosen: list[int] = []
        given, most = list(output[:-1]), self.context.positions
        for first in range(0, len(given), most):
            part = given[first : first + most]
            self.context.decode(part, len(prompt) + first)
            chosen += [self.context.best(row) for row in range(len(part))]
        self.context.forget(len(prompt))
        return chosen

    def close(self) -> None:
        """Give the cache and the weights back."""
        self.context.close()
        self.model.close()


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
