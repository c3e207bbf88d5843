"""OpenVINO decoding greedily with its own pipeline: plain, prompt lookup, or a draft model.

`LLMPipeline` speculates; its performance metrics report each step's tokens. Its prompt lookup takes
the first earlier occurrence of the last n tokens, for n from `max_ngram_size` down to one. It pads
the drafts to K with tokens that never match, so that every step has 1 + K rows.
"""

import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from nearfree.backends.builds import build_of
from nearfree.core.candidates import DRAFTED_CACHES
from nearfree.core.drafting import (
    Available,
    Drafting,
    Steps,
    lookup_draft,
    trace_offers,
    verified_drafts,
)
from nearfree.engines.generation import Decoded, GeneratorOptions
from nearfree.engines.openvino import (
    Compiled,
    Converted,
    Runtime,
    last_line,
    load,
    refuse_unread,
)
from nearfree.engines.openvino_kernel import loaded_event, vocabulary
from nearfree.engines.openvino_pages import Pages
from nearfree.engines.openvino_properties import properties
from nearfree.errors import ConfigError, EvidenceError
from nearfree.gguf.reader import read_header
from nearfree.log.events import EngineLoaded

ENGINE = "openvino"
_ROWS = 64
"""Most rows of a forward whose logits are read."""


class OpenVinoGenerator:
    """A model in OpenVINO, with one pipeline per drafter and number of threads."""

    loop = "openvino_genai's own LLMPipeline"

    def __init__(self, options: GeneratorOptions) -> None:
        self._options = options
        self._build = build_of(ENGINE, options.release)
        for path in filter(None, (options.model, options.draft_model)):
            refuse_unread(read_header(path))
        self._runtime: Runtime = load(options.release, self._build)
        self._converted = Converted(self._runtime, options.model)
        self._tokenizer = self._make_tokenizer(self._converted, options.model)
        self._draft: Converted | None = None
        if options.draft_model is not None:
            self._draft = Converted(self._runtime, options.draft_model)
            self._refuse_another_vocabulary(options.draft_model)
        self._pipelines: dict[tuple[str, int, str | None], Any] = {}
        self._compiled_by_cache: dict[str | None, Compiled] = {}

    def _make_tokenizer(self, converted: Converted, path: Path) -> Any:
        try:
            return self._runtime.genai.Tokenizer(str(converted.folder))
        except RuntimeError as error:
            raise EvidenceError(
                f"OpenVINO makes no tokenizer of {path.name}: {last_line(error)}",
                remedy="Give a GGUF file with its tokenizer",
            ) from error

    def _refuse_another_vocabulary(self, path: Path) -> None:
        """Raise ConfigError unless the draft's tokenizer has the same tokens under the same ids."""
        draft_tokenizer = self._make_tokenizer(self._drafting_model, path)
        if self._tokenizer.get_vocab() != draft_tokenizer.get_vocab():
            raise ConfigError(
                f"{path.name} has another vocabulary than the model that it drafts for",
                remedy="Give a draft model of the same family, with the same tokenizer",
            )

    def exact(self, threads: int, positions: int, rows: int) -> bool:
        """Return False: a row's rounding depends on the other rows of its forward."""
        del threads, positions, rows
        return False

    @property
    def _drafting_model(self) -> Converted:
        if self._draft is None:
            raise ConfigError("no draft model is given", remedy="Name a GGUF file: --draft-model")
        return self._draft

    def tokens(self, text: str) -> tuple[int, ...]:
        """Return the token ids of a user's message in the model's chat template."""
        tokenizer = self._tokenizer
        if tokenizer.chat_template:
            messages = [{"role": "user", "content": text}]
            text = tokenizer.apply_chat_template(messages, add_generation_prompt=True)
        encoding = tokenizer.encode(text, add_special_tokens=not tokenizer.chat_template)
        return tuple(int(token) for token in encoding.input_ids.data[0])

    def _pipeline(self, drafting: Drafting) -> Any:
        key = (drafting.drafter, drafting.threads, drafting.kv_dtype)
        if key not in self._pipelines:
            genai = self._runtime.genai
            options = properties(drafting.threads, drafting.kv_dtype)
            drafting_options: dict[str, Any] = {}
            if drafting.drafter == "prompt_lookup":
                drafting_options = {"prompt_lookup": True}
            elif drafting.drafter == "draft_model":
                folder = str(self._drafting_model.folder)
                drafting_options = {"draft_model": genai.draft_model(folder, "CPU", **options)}
            self._pipelines[key] = genai.LLMPipeline(
                str(self._converted.folder), "CPU", **options, **drafting_options
            )
        return self._pipelines[key]

    def decode(
        self, prompt: Sequence[int], drafting: Drafting, limit: int, draws: Sequence[float] = ()
    ) -> Decoded:
        """Decode greedily after a prompt, up to `limit` tokens or the end of text.

        `draws` is always empty: `refuse_sampling` rejects sampling.

        Raises
        ------
        ConfigError
            The pipeline does not have this drafter.
        """
        del draws
        _refuse_other_drafting(drafting)
        np = self._runtime.numpy
        ids = self._runtime.openvino.Tensor(np.array([prompt], dtype=np.int64))
        options: dict[str, Any] = {"max_new_tokens": limit, "do_sample": False}
        if drafting.drafter != "none":
            options["num_assistant_tokens"] = drafting.k
        if drafting.drafter == "prompt_lookup":
            options["max_ngram_size"] = drafting.ngram_max
        pipeline, watch = self._pipeline(drafting), _first_token(self._runtime.genai)
        try:
            result = pipeline.generate(ids, streamer=watch, **options)
        except RuntimeError as error:
            raise EvidenceError(
                f"OpenVINO does not decode: {last_line(error)}",
                remedy="Give a shorter prompt or fewer tokens",
            ) from error
        process_s, wall_s = time.process_time(), time.perf_counter()
        tokens = tuple(int(token) for token in result.tokens[0])
        batch_sizes = [int(token) for token in result.perf_metrics.raw_metrics.m_batch_sizes]
        return Decoded(
            tokens=tokens,
            steps=_steps(batch_sizes, drafting, prompt, tokens, limit),
            wall_s=wall_s - watch.wall,
            process_s=process_s - watch.process,
        )

    def drafts(self, prompt: Sequence[int], output: Sequence[int], drafting: Drafting) -> Available:
        """Return the drafts for each position of a known output, up to K tokens each."""
        _refuse_other_drafting(drafting)
        draft_choices = (
            self._draft_choices(prompt, output) if drafting.drafter == "draft_model" else []
        )
        return trace_offers(prompt, output, drafting, draft_choices)

    def _draft_choices(self, prompt: Sequence[int], output: Sequence[int]) -> list[int]:
        """Return the draft model's best token after each token of a known output but the last."""
        draft = self._drafting_model
        compiled = Compiled(self._runtime, draft, 1, DRAFTED_CACHES[ENGINE])
        tokens = [*prompt, *output[:-1]]
        best = [int(row.argmax()) for row in self._logits(compiled, draft.file, tokens)]
        return best[len(prompt) :]

    def margin(self, tokens: Sequence[int], drafting: Drafting) -> float | None:
        """Return the difference of the two highest logits after some tokens."""
        np = self._runtime.numpy
        compiled = self._compiled(drafting.kv_dtype)
        *_, logits = self._logits(compiled, self._options.model, tokens)
        runner_up, best = np.partition(logits, -2)[-2:]
        return float(best - runner_up)

    def _logits(self, compiled: Compiled, path: Path, tokens: Sequence[int]) -> Any:
        """Yield the logits after each of some tokens."""
        pages = Pages(
            compiled,
            batch=1,
            cached=0,
            positions=len(tokens),
            vocabulary=vocabulary(read_header(path)),
        )
        for start in range(0, len(tokens), _ROWS):
            pages.run([tokens[start : start + _ROWS]], start)
            yield from pages.logits

    def _compiled(self, kv_dtype: str | None) -> Compiled:
        if kv_dtype not in self._compiled_by_cache:
            compiled = Compiled(self._runtime, self._converted, 1, kv_dtype)
            self._compiled_by_cache[kv_dtype] = compiled
        return self._compiled_by_cache[kv_dtype]

    def loaded(self, runs: Iterable[Drafting]) -> list[EngineLoaded]:
        """Return events with the engine, its model and its properties, one per format of cache."""
        options = self._options
        return [
            loaded_event(
                self._compiled(kv_dtype),
                options.model,
                release=options.release,
                package=self._build.package,
                name=options.name,
                file_type=options.file_type,
            )
            for kv_dtype in dict.fromkeys(run.kv_dtype for run in runs)
        ]

    def close(self) -> None:
        """Free pipelines and weights."""
        self._pipelines, self._compiled_by_cache = {}, {}


def _steps(
    step_tokens: Sequence[int],
    drafting: Drafting,
    prompt: Sequence[int],
    output: Sequence[int],
    limit: int,
) -> Steps | None:
    """Return the steps after the prompt's, from the tokens of each; None if they are incomplete.

    A step's last token is the model's own, unless an end of text was itself drafted. The engine
    does not report that; for prompt lookup the draft is recomputed to decide it.
    """
    first_step, *later_steps = step_tokens or [0]
    if not later_steps or (first_step, first_step + sum(later_steps)) != (1, len(output)):
        return None if len(output) != 1 else Steps(rows=(), accepted=())
    rows, accepted, output_length = [], [], 1
    for step in later_steps:
        drafted = verified_drafts(
            drafting, drafting.k, len(prompt) + output_length, limit - output_length
        )
        rows.append(1 + (drafting.k if drafting.padded else drafted))
        accepted.append(step - 1)
        output_length += step
    if drafting.drafter == "prompt_lookup" and len(output) < limit:
        prefix = len(output) - later_steps[-1]
        drafts = lookup_draft([*prompt, *output[:prefix]], drafting.k, drafting)
        accepted[-1] += list(drafts[: later_steps[-1]]) == list(output[prefix:])
    return Steps(rows=tuple(rows), accepted=tuple(accepted))


def _refuse_other_drafting(drafting: Drafting) -> None:
    """Raise ConfigError for a drafter that the pipeline does not have."""
    lookup = drafting.drafter == "prompt_lookup"
    supported_lookup = lookup and drafting.ngram_min == 1 and drafting.first and drafting.padded
    if drafting.edges or not (supported_lookup or drafting.drafter in ("none", "draft_model")):
        raise ConfigError(
            f"OpenVINO's pipeline does not draft by {drafting.label}",
            remedy="Its lookup takes the first match, n-grams down to one token, and pads drafts",
        )


def _first_token(genai: Any) -> Any:
    """Return a streamer that records the time of the first token."""

    class Watch(genai.StreamerBase):  # type: ignore[misc]
        """Records when the first token came."""

        wall = process = 0.0

        def write(self, token: object) -> Any:
            """Receive one token, or those of a step."""
            del token
            if not self.wall:
                self.process, self.wall = time.process_time(), time.perf_counter()
            return genai.StreamingStatus.RUNNING

        def end(self) -> None:
            """Receive the end of the stream."""

    return Watch()
