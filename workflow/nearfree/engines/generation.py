"""Decoding in a real engine, with and without drafts: the interface that `nearfree tune` uses."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from msgspec import Struct

from nearfree.backends.records import load
from nearfree.core.drafting import Drafting, Steps
from nearfree.errors import ConfigError
from nearfree.log.events import EngineLoaded


class Decoded(Struct, frozen=True, kw_only=True):
    """One decode of one prompt: its output, its steps and its times.

    Times are of decoding alone: from the first token, which the prompt's forward gives, to the
    last.
    """

    tokens: tuple[int, ...]
    """The ids of the output, the first token included; an end of text, if reached, is the last."""
    steps: Steps | None
    """None if the engine's own loop does not report them."""
    wall_s: float
    process_s: float
    """CPU time of all threads of this process."""
    draft_s: float = 0.0
    """The part of `wall_s` spent drafting, if known."""


class Generator(Protocol):
    """A model in an engine that decodes token ids; `GENERATORS` names each engine's class.

    The class is called with `GeneratorOptions`. Only `decode` is timed.
    """

    loop: str
    """The loop that speculates, in words: the engine's own, or this project's over some call."""

    def exact(self, threads: int, positions: int, rows: int) -> bool:
        """Return whether outputs are independent of the drafts.

        They are if no row's result depends on the number of rows in a forward. A replay is then
        exact, otherwise an estimate.

        Parameters
        ----------
        positions
            Positions in the cache at the end.
        rows
            Most rows of a forward.
        """

    def tokens(self, text: str) -> tuple[int, ...]:
        """Return the token ids of a user's message in the model's chat template."""

    def decode(
        self, prompt: Sequence[int], drafting: Drafting, limit: int, draws: Sequence[float] = ()
    ) -> Decoded:
        """Decode after a prompt, up to `limit` tokens or the end of text.

        A prompt's cache may be kept for the next call with the same prompt.

        Parameters
        ----------
        draws
            The `limit` random numbers that sample the tokens, as in `core.sampling`; greedy
            without them.
        """

    def decode_all(
        self,
        prompts: Sequence[Sequence[int]],
        drafting: Drafting,
        limit: int,
        draws: Sequence[Sequence[float]],
    ) -> list[Decoded]:
        """Decode after several prompts at once, in `GeneratorOptions.batch` slots.

        Only engines in `BATCHED` have this method.

        Parameters
        ----------
        draws
            As of `decode`, for each prompt.
        """

    def drafts(self, prompt: Sequence[int], output: Sequence[int], drafting: Drafting) -> Any:
        """Return a drafter's drafts over a known output, as `Available` of `core.drafting`."""

    def margin(self, tokens: Sequence[int], drafting: Drafting) -> float | None:
        """Return the difference of the two highest logits after some tokens, None if unknown.

        `drafting` gives the storage of the weights and the cache.
        """

    def loaded(self, runs: Iterable[Drafting]) -> list[EngineLoaded]:
        """Return events with the engine and its model, one per storage and cache of some runs."""

    def close(self) -> None:
        """Free all resources."""


class GeneratorOptions(Struct, frozen=True, kw_only=True):
    """The arguments of a generator."""

    release: str
    model: Path
    """The GGUF file; its bytes were compared with `sha256`."""
    name: str
    """The model's name in the log."""
    sha256: str
    file_type: str
    positions: int
    """Most positions of a prompt with its output."""
    rows: int
    """Most rows of one forward: 1 + K."""
    draft_model: Path | None = None
    temperature: float = 0.0
    """The sampling temperature; 0 is greedy."""
    batch: int = 1
    """Slots in which prompts are decoded at once."""
    repack: bool = True
    """The layout of the weights that are loaded for their tokenizer, if several are decoded."""


GENERATORS: Mapping[str, str] = {
    "llama_cpp": "nearfree.engines.llama_cpp_generator:LlamaCppGenerator",
    "openvino": "nearfree.engines.openvino_generator:OpenVinoGenerator",
}
"""Module and class of each engine's generator."""
SAMPLED = ("llama_cpp",)
"""The engines that sample tokens by random numbers passed to them."""
BATCHED = ("llama_cpp",)
"""The engines that decode several prompts at once."""


def make_generator(engine: str, options: GeneratorOptions) -> Generator:
    """Return an engine's generator, with its libraries and weights loaded.

    Raises
    ------
    ConfigError
        The engine has no generator, or does not support the temperature or batch.
    EvidenceError
        The engine's files are missing, or it does not load the model.
    """
    if engine not in GENERATORS:
        raise ConfigError(
            f"{engine!r:.60} is no engine that decodes here",
            remedy=f"Choose from {', '.join(GENERATORS)}",
        )
    refuse_sampling(engine, options.temperature)
    refuse_batch(engine, options.batch)
    generator: Generator = load(GENERATORS[engine])(options)
    return generator


def refuse_sampling(engine: str, temperature: float) -> None:
    """Raise ConfigError if an engine would sample tokens by its own random numbers."""
    if temperature and engine not in SAMPLED:
        raise ConfigError(
            f"{engine} samples tokens in its own pipeline, and drafts shift its random numbers: "
            "outputs could not be compared or replayed",
            remedy=f"Decode greedily, without --temperature, or in {' or '.join(SAMPLED)}",
        )


def refuse_batch(engine: str, batch: int) -> None:
    """Raise ConfigError if an engine would decode several prompts without reporting their steps."""
    if batch > 1 and engine not in BATCHED:
        raise ConfigError(
            f"{engine} streams the tokens of one prompt alone: for several at once its pipeline "
            "reports neither when decoding began nor the steps of each",
            remedy=f"Decode one at a time, without --batch, or in {' or '.join(BATCHED)}",
        )
