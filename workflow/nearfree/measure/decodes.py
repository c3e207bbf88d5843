"""A take of decodes: an engine decodes each prompt with several drafter settings in turn."""

import random
from collections.abc import Mapping, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from nearfree.config.prompts import Prompt
from nearfree.core.candidates import check_cache
from nearfree.core.drafting import Drafting, agreed_length
from nearfree.core.memories import trace_memory
from nearfree.core.plan import DecodePlan
from nearfree.core.sampling import draws
from nearfree.core.weights import WeightsFile
from nearfree.engines.files import weights_path
from nearfree.engines.generation import Decoded, Generator, GeneratorOptions, make_generator
from nearfree.engines.threads import refuse_threads
from nearfree.errors import ConfigError
from nearfree.hardware.clocks import load_1m
from nearfree.hardware.handover import Handover, longest, watched
from nearfree.hardware.identity import this_machine
from nearfree.log.events import DecodeMeasured, DraftsTraced, EngineLoaded
from nearfree.log.names import Layout
from nearfree.log.reader import gc_paused
from nearfree.log.run import describe_run
from nearfree.log.seal import Seal
from nearfree.log.take import OpenTake, ensure_sealed, ensure_take, take_name
from nearfree.measure.rounds import whole_rounds
from nearfree.measure.texts import StoredText, Texts, ids_sha256, texts_folder
from nearfree.measure.visits import Progress, no_progress, stoppable


def measure_decodes(
    layout: Layout,
    scope: str,
    stream: str,
    take: int,
    plan: DecodePlan,
    *,
    prompts: Sequence[Prompt],
    files: Mapping[str, Path],
    progress: Progress = no_progress,
) -> Seal:
    """Run the decodes that a plan's take still lacks, seal it, and return its seal.

    Parameters
    ----------
    prompts
        The plan's prompts, with their texts.
    files
        Paths of weights outside the cache, by SHA-256.
    progress
        Receives the completed share of the take after each prompt.

    Raises
    ------
    HardwareError
        This machine is not the platform that the log knows.
    EvidenceError
        The platform was not probed yet, weights or libraries are missing, there are fewer CPUs
        than threads, or the engine refuses.
    ConfigError
        The texts are not the plan's, a prompt exceeds the context, or the draft model has another
        vocabulary.
    StoppedError
        SIGTERM came; whole prompts are kept.
    """
    name = take_name(scope, stream, take, plan)
    sealed = ensure_sealed(layout, name)
    if sealed is not None:
        return sealed
    fingerprint = this_machine(layout, scope)
    if tuple(prompt.part for prompt in prompts) != plan.prompts:
        raise ConfigError(
            "the prompts differ from the plan's", remedy="Give the file that the plan was made from"
        )
    refuse_threads(run.threads for run in plan.runs)
    for run in plan.runs:
        check_cache(plan.engine, run.kv_dtype)

    def observe(open_take: OpenTake) -> float:
        options = _options(plan, files)
        with (
            stoppable(progress) as stopping,
            closing(make_generator(plan.engine, options)) as generator,
            gc_paused(),
            watched(max(run.threads for run in plan.runs)) as handover,
        ):
            texts = Texts(texts_folder(layout), plan)
            decodes = _Decodes(open_take, plan, generator, texts, handover)
            return decodes.run(prompts, stopping)

    command = f"nearfree tune {plan.engine}"
    return ensure_take(
        layout,
        name,
        plan,
        partial(
            describe_run, command, plan, environment=plan.environment, device=fingerprint.model
        ),
        observe,
        keep=whole_rounds,
    )


def _options(plan: DecodePlan, files: Mapping[str, Path]) -> GeneratorOptions:
    weights = plan.weights
    return GeneratorOptions(
        release=plan.release,
        model=weights_path(weights, files),
        name=plan.model,
        sha256=_sha256(plan),
        file_type=weights.file_type,
        positions=plan.positions,
        rows=plan.rows,
        draft_model=None if plan.draft is None else weights_path(plan.draft, files),
        temperature=plan.temperature,
        batch=plan.batch,
        repack=plan.runs[0].repack,
    )


def _sha256(plan: DecodePlan) -> str:
    if not isinstance(plan.weights, WeightsFile):
        raise ConfigError("random weights decode no text", remedy="Give a GGUF file")
    return plan.weights.sha256


_TRIES = 3
"""How often a prompt is decoded with one setting until its CPUs were close all the time."""


class _TokenizedPrompt(NamedTuple):
    """A prompt with its tokens."""

    prompt: Prompt
    ids: tuple[int, ...]


class _Decodes:
    """The decodes of one take that earlier attempts have not done."""

    def __init__(
        self,
        take: OpenTake,
        plan: DecodePlan,
        generator: Generator,
        texts: Texts,
        handover: Handover | None,
    ) -> None:
        self._take, self._plan, self._generator, self._texts = take, plan, generator, texts
        self._handover = handover
        self._outputs: dict[tuple[str, Drafting], tuple[int, ...]] = {}
        decodes = [e.data for e in take.events if isinstance(e.data, DecodeMeasured)]
        self._done = {(decode.prompt_sha256, decode.repeat) for decode in decodes}
        self._loaded = any(isinstance(e.data, EngineLoaded) for e in take.events)

    def run(self, prompts: Sequence[Prompt], progress: Progress) -> float:
        """Run the missing decodes, prompt by prompt; return the seconds inside decodes."""
        plan, timed_s = self._plan, 0.0
        ids = {prompt.part.sha256: self._generator.tokens(prompt.text) for prompt in prompts}
        self._refuse_long(ids)
        if not self._loaded:
            for loaded in self._generator.loaded(plan.runs):
                self._take.append(loaded)
        groups = [tuple(prompts)] if plan.batch > 1 else [(prompt,) for prompt in prompts]
        visits = [(repeat, group) for repeat in range(plan.repeats) for group in groups]
        for number, (repeat, group) in enumerate(visits):

            def visit_progress(share: float, visits_done: int = number) -> None:
                progress((visits_done + share) / len(visits))

            if not all((prompt.part.sha256, repeat) in self._done for prompt in group):
                timed_s += self._visit(
                    repeat,
                    [_TokenizedPrompt(prompt, ids[prompt.part.sha256]) for prompt in group],
                    visit_progress,
                )
                self._take.sync()
            progress((number + 1) / len(visits))
        return timed_s

    def _refuse_long(self, ids: Mapping[str, tuple[int, ...]]) -> None:
        plan = self._plan
        for number, part in enumerate(plan.prompts, start=1):
            if not ids[part.sha256]:
                raise ConfigError(f"prompt {number} has no token", remedy="Give a longer one")
            if len(ids[part.sha256]) + plan.limit > plan.positions:
                raise ConfigError(
                    f"prompt {number} has {len(ids[part.sha256])} tokens: with {plan.limit} of "
                    f"output they are over the context of {plan.positions}",
                    remedy="Shorten it, or ask for a larger --context",
                )

    def _visit(self, repeat: int, texts: Sequence[_TokenizedPrompt], progress: Progress) -> float:
        """Decode one prompt, or one batch of prompts, with all settings in a random order.

        Return the seconds inside decodes. Events are appended at the end. `progress` receives the
        share of the settings that ran.
        """
        plan = self._plan
        order = list(plan.runs)
        first = texts[0].prompt.part.sha256
        random.Random(f"{plan.seed} {repeat} {first}").shuffle(order)  # noqa: S311 (an order)
        decodes = []
        for position, drafting in enumerate(order, start=1):
            decodes.append((drafting, *self._settled_decode(drafting, texts)))
            if plan.batch > 1 and position < len(order):
                progress(position / len(order))
        for drafting, decoded, _ in decodes:
            if drafting.drafter == "none" and plan.batch == 1:
                self._plain_output(texts[0], drafting, output=decoded[0].tokens)
        for position, (drafting, decoded, trip_ns) in enumerate(decodes):
            for text, decode in zip(texts, decoded, strict=True):
                measured = self._measured_event(
                    decode, drafting, text, repeat=repeat, order=position, handover_ns=trip_ns
                )
                self._take.append(measured, sync=False)
        if repeat == 0:
            first_run = next(decoded for run, decoded, _ in decodes if run == plan.runs[0])
            for text, decode in zip(texts, first_run, strict=True):
                for drafting in plan.traced:  # traced over the recorded output, not a stored one
                    traced = self._traced_event(drafting, text, decode.tokens)
                    self._take.append(traced, sync=False)
        return sum(decode.wall_s for _, decoded, _ in decodes for decode in decoded)

    def _settled_decode(
        self, drafting: Drafting, texts: Sequence[_TokenizedPrompt]
    ) -> tuple[list[Decoded], float | None]:
        """Decode, and again if the CPUs moved apart meanwhile; return the round trip between them.

        Decoding again counts as waiting, so that it ends where `Handover` loses its patience.
        """
        watch = self._handover
        if watch is None or watch.threads != drafting.threads:
            return self._decode(drafting, texts), None
        for tries_left in reversed(range(_TRIES)):
            before_ns = watch.settle()
            decoded = self._decode(drafting, texts)
            trip_ns = longest(before_ns, watch.look())
            if not (watch.apart(trip_ns) and watch.patient and tries_left):
                break
            watch.waited_s += sum(decode.wall_s for decode in decoded)
        return decoded, trip_ns

    def _decode(self, drafting: Drafting, texts: Sequence[_TokenizedPrompt]) -> list[Decoded]:
        limit = self._plan.limit
        prompts = [text.ids for text in texts]
        all_draws: list[tuple[float, ...]] = [() for _ in texts]
        if self._plan.temperature:
            hashes = (text.prompt.part.sha256 for text in texts)
            all_draws = [draws(self._plan.seed, sha256, limit) for sha256 in hashes]
        if len(texts) > 1:
            return self._generator.decode_all(prompts, drafting, limit, all_draws)
        return [self._generator.decode(prompts[0], drafting, limit, all_draws[0])]

    def _plain_output(
        self, text: _TokenizedPrompt, drafting: Drafting, *, output: tuple[int, ...] | None = None
    ) -> tuple[int, ...]:
        """Return a prompt's output without drafts: stored, or else decoded once, untimed.

        Parameters
        ----------
        drafting
            Gives the threads, the storage of weights (`repack`) and the cache.
        output
            An output without drafts that was just decoded; it is stored if none is stored yet.
        """
        plain = Drafting().placed_as(drafting)
        key = (text.prompt.part.sha256, plain)
        if key not in self._outputs:
            stored = self._texts.find(key[0], text.ids, plain)
            if stored is None:
                output = output or self._decode(plain, [text])[0].tokens
                stored = StoredText(prompt=text.prompt.text, prompt_ids=text.ids, output_ids=output)
                self._texts.keep(key[0], stored, plain)
            self._outputs[key] = stored.output_ids
        return self._outputs[key]

    def _measured_event(
        self,
        decoded: Decoded,
        drafting: Drafting,
        text: _TokenizedPrompt,
        *,
        repeat: int,
        order: int,
        handover_ns: float | None,
    ) -> DecodeMeasured:
        plain = self._plain_output(text, drafting)
        same_tokens = agreed_length(decoded.tokens, plain)
        margin = None
        if decoded.tokens != plain and not self._plan.temperature:  # a sample may not be the best
            prefix = (*text.ids, *plain[:same_tokens])
            margin = self._generator.margin(prefix, drafting)
        return DecodeMeasured(
            **self._common_fields(text.prompt, decoded.tokens),
            drafting=drafting,
            loop=self._generator.loop,
            batch=self._plan.batch,
            exact=self._generator.exact(
                drafting.threads,
                len(text.ids) + len(decoded.tokens) - 1,
                min(1 + drafting.k, self._plan.limit),
            ),
            repeat=repeat,
            order=order,
            prompt_tokens=len(text.ids),
            same_tokens=same_tokens,
            margin=margin,
            steps=decoded.steps,
            wall_s=round(decoded.wall_s, 6),
            process_s=round(decoded.process_s, 6),
            draft_s=round(decoded.draft_s, 6),
            load_1m=load_1m(),
            handover_ns=handover_ns,
        )

    def _traced_event(
        self, drafting: Drafting, text: _TokenizedPrompt, output: tuple[int, ...]
    ) -> DraftsTraced:
        available = (
            trace_memory(drafting, text.ids, output, self._plan.limit)
            if drafting.remembers
            else self._generator.drafts(text.ids, output, drafting)
        )
        return DraftsTraced(
            **self._common_fields(text.prompt, output),
            drafting=drafting,
            available=available,
        )

    def _common_fields(self, prompt: Prompt, output: Sequence[int]) -> dict[str, Any]:
        """Return the fields that both kinds of events share."""
        plan, part = self._plan, prompt.part
        draft = plan.draft if isinstance(plan.draft, WeightsFile) else None
        return {
            "engine": plan.engine,
            "release": plan.release,
            "model": plan.model,
            "weights_sha256": _sha256(plan),
            "draft_sha256": draft.sha256 if draft else None,
            "prompt_sha256": part.sha256,
            "kind": part.kind,
            "held_out": part.held_out,
            "limit": plan.limit,
            "output_tokens": len(output),
            "output_sha256": ids_sha256(output),
        }
