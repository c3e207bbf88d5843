"""OpenVINO decoding greedily with its own pipeline: plain, prompt lookup, or a draft model.

`LLMPipeline` speculates; what it ran is what its performance metrics say of each step. Its prompt
lookup takes the first earlier place of the last n tokens, from `max_ngram_size` down to one, and
fills what it found up to K with tokens that never match, so that every step has 1 + K rows.
"""

import time
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from nearfree.backends.builds import build_of
from nearfree.core.drafting import Available, Drafting, Steps, looked_up, offers, usable
from nearfree.engines.generation import Decoded, GeneratorOptions
from nearfree.engines.openvino import (
    Compiled,
    Converted,
    Runtime,
    last_line,
    load,
    properties,
    refuse_unread,
)
from nearfree.engines.openvino_kernel import loaded_event, vocabulary
from nearfree.engines.openvino_pages import Pages
from nearfree.errors import ConfigError, EvidenceError
from nearfree.gguf.reader import read_header
from nearfree.log.events import EngineLoaded

ENGINE = "openvino"
_ROWS = 64
"""Rows of a forward whose logits are looked at, at most."""


class OpenVinoGenerator:
    """A model in OpenVINO; one pipeline for each way of drafting and number of threads."""

    loop = "openvino_genai's own LLMPipeline"

    def __init__(self, options: GeneratorOptions) -> None:
        self._options = options
        self._build = build_of(ENGINE, options.release)
        for path in filter(None, (options.model, options.draft_model)):
            refuse_unread(read_header(path))
        self._runtime: Runtime = load(options.release, self._build)
        self._converted = Converted(self._runtime, options.model)
        self._tokenizer = self._reader(self._converted, options.model)
        self._draft: Converted | None = None
        if options.draft_model is not None:
            self._draft = Converted(self._runtime, options.draft_model)
            self._refuse_another_vocabulary(options.draft_model)
        self._pipelines: dict[tuple[str, int], Any] = {}

    def _reader(self, converted: Converted, path: Path) -> Any:
        try:
            return self._runtime.genai.Tokenizer(str(converted.folder))
        except RuntimeError as error:
            raise EvidenceError(
                f"OpenVINO makes no tokenizer of {path.name}: {last_line(error)}",
                remedy="Give a GGUF file with its tokenizer",
            ) from error

    def _refuse_another_vocabulary(self, path: Path) -> None:
        """Raise ConfigError unless the draft's tokenizer has the same tokens under the same ids."""
        own, drafts = (
            self._tokenizer.get_vocab(),
            self._reader(self._drafting_model, path).get_vocab(),
        )
        if own != drafts:
            raise ConfigError(
                f"{path.name} has another vocabulary than the model that it drafts for",
                remedy="Give a draft model of the same family, with the same tokenizer",
            )

    def exact(self, threads: int, positions: int, rows: int) -> bool:
        """Return False: its kernels round a row otherwise beside others."""
        del threads, positions, rows
        return False

    @property
    def _drafting_model(self) -> Converted:
        if self._draft is None:
            raise ConfigError("no draft model is given", remedy="Name a GGUF file: --draft-model")
        return self._draft

    def tokens(self, text: str) -> tuple[int, ...]:
        """Return the ids of a user's message, as the model's chat template wraps it."""
        tokenizer = self._tokenizer
        if tokenizer.chat_template:
            said = [{"role": "user", "content": text}]
            text = tokenizer.apply_chat_template(said, add_generation_prompt=True)
        found = tokenizer.encode(text, add_special_tokens=not tokenizer.chat_template)
        return tuple(int(each) for each in found.input_ids.data[0])

    def _pipeline(self, drafting: Drafting) -> Any:
        key = (drafting.drafter, drafting.threads)
        if key not in self._pipelines:
            genai, given = self._runtime.genai, properties(drafting.threads)
            also: dict[str, Any] = {}
            if drafting.drafter == "prompt_lookup":
                also = {"prompt_lookup": True}
            elif drafting.drafter == "draft_model":
                folder = str(self._drafting_model.folder)
                also = {"draft_model": genai.draft_model(folder, "CPU", **given)}
            self._pipelines[key] = genai.LLMPipeline(
                str(self._converted.folder), "CPU", **given, **also
            )
        return self._pipelines[key]

    def decode(
        self, prompt: Sequence[int], drafting: Drafting, limit: int, draws: Sequence[float] = ()
    ) -> Decoded:
        """Decode greedily after a prompt, up to `limit` tokens or the end of text.

        There are never draws: it takes none, which is refused before (`refuse_sampling`).

        Raises
        ------
        ConfigError
            The pipeline drafts in no such way.
        """
        del draws
        _refuse_other_drafting(drafting)
        np = self._runtime.numpy
        ids = self._runtime.openvino.Tensor(np.array([prompt], dtype=np.int64))
        asked: dict[str, Any] = {"max_new_tokens": limit, "do_sample": False}
        if drafting.drafter != "none":
            asked["num_assistant_tokens"] = drafting.k
        if drafting.drafter == "prompt_lookup":
            asked["max_ngram_size"] = drafting.ngram_max
        pipeline, watch = self._pipeline(drafting), _first_token(self._runtime.genai)
        try:
            found = pipeline.generate(ids, streamer=watch, **asked)
        except RuntimeError as error:
            raise EvidenceError(
                f"OpenVINO does not decode: {last_line(error)}",
                remedy="Give a shorter prompt or fewer tokens",
            ) from error
        process_s, wall_s = time.process_time(), time.perf_counter()
        tokens = tuple(int(each) for each in found.tokens[0])
        made = [int(each) for each in found.perf_metrics.raw_metrics.m_batch_sizes]
        return Decoded(
            tokens=tokens,
            steps=_steps(made, drafting, prompt, tokens, limit),
            wall_s=wall_s - watch.wall,
            process_s=process_s - watch.process,
        )

    def drafts(self, prompt: Sequence[int], output: Sequence[int], drafting: Drafting) -> Available:
        """Return what the drafter offers over a known output, up to K tokens each time."""
        _refuse_other_drafting(drafting)
        chosen = self._taught(prompt, output) if drafting.drafter == "draft_model" else []
        return offers(prompt, output, drafting, chosen)

    def _taught(self, prompt: Sequence[int], output: Sequence[int]) -> list[int]:
        """Return what the draft model chooses after each token of a known output but the last."""
        path = self._options.draft_model
        compiled = Compiled(self._runtime, self._drafting_model, 1)
        known = [*prompt, *output[:-1]]
        best = [int(row.argmax()) for row in self._logits(compiled, path, known)]
        return best[len(prompt) :]

    def margin(self, tokens: Sequence[int], *, repack: bool) -> float | None:
        """Return by how much the best logit after some tokens leads the second."""
        del repack  # it has one way to store weights
        np = self._runtime.numpy
        *_, last = self._logits(self._compiled, self._options.model, tokens)
        second, first = np.partition(last, -2)[-2:]
        return float(first - second)

    def _logits(self, compiled: Compiled, path: Path | None, tokens: Sequence[int]) -> Any:
        """Yield the logits after each of some tokens."""
        if path is None:
            raise ConfigError("no draft model is given", remedy="Name a GGUF file: --draft-model")
        pages = Pages(
            compiled,
            batch=1,
            cached=0,
            positions=len(tokens),
            vocabulary=vocabulary(read_header(path)),
        )
        for first in range(0, len(tokens), _ROWS):
            pages.run([tokens[first : first + _ROWS]], first)
            yield from pages.logits

    @cached_property
    def _compiled(self) -> Compiled:
        return Compiled(self._runtime, self._converted, 1)

    def loaded(self) -> EngineLoaded:
        """Return what is on record of what ran."""
        options = self._options
        return loaded_event(
            self._compiled,
            options.model,
            release=options.release,
            package=self._build.package,
            name=options.name,
            file_type=options.file_type,
        )

    def close(self) -> None:
        """Give pipelines and weights back."""
        self._pipelines = {}
        self.__dict__.pop("_compiled", None)


def _steps(
    made: Sequence[int],
    drafting: Drafting,
    prompt: Sequence[int],
    output: Sequence[int],
    limit: int,
) -> Steps | None:
    """Return the steps after the prompt's, by how many tokens each one made; None if they lack.

    A step's last token is the model's own, but where an end of text was itself drafted: the engine
    does not tell, and of a lookup what it looked up does.
    """
    first, *rest = made or [0]
    if not rest or (first, first + sum(rest)) != (1, len(output)):
        return None if len(output) != 1 else Steps(rows=(), accepted=())
    rows, accepted, done = [], [], 1
    for each in rest:
        drafted = usable(drafting, drafting.k, len(prompt) + done, limit - done)
        rows.append(1 + (drafting.k if drafting.padded else drafted))
        accepted.append(each - 1)
        done += each
    if drafting.drafter == "prompt_lookup" and len(output) < limit:
        before = len(output) - rest[-1]
        drafts = looked_up([*prompt, *output[:before]], drafting.k, drafting)
        accepted[-1] += list(drafts[: rest[-1]]) == list(output[before:])
    return Steps(rows=tuple(rows), accepted=tuple(accepted))


def _refuse_other_drafting(drafting: Drafting) -> None:
    """Raise ConfigError for a way of drafting that the pipeline does not have."""
    lookup = drafting.drafter == "prompt_lookup"
    own = lookup and drafting.ngram_min == 1 and drafting.first and drafting.padded
    if drafting.edges or not (own or drafting.drafter in ("none", "draft_model")):
        raise ConfigError(
            f"OpenVINO's pipeline does not draft by {drafting.label}",
            remedy="Its lookup takes the first place, n-grams down to one token, and pads drafts",
        )


def _first_token(genai: Any) -> Any:
    """Return a streamer that takes the times of the first token."""

    class Watch(genai.StreamerBase):  # type: ignore[misc]
        """Keeps when the first token came."""

        wall = process = 0.0

        def write(self, token: object) -> Any:
            """Take in one token, or those of a step."""
            del token
            if not self.wall:
                self.process, self.wall = time.process_time(), time.perf_counter()
            return genai.StreamingStatus.RUNNING

        def end(self) -> None:
            """Take in that no more come."""

    return Watch()
