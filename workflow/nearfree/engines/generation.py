"""Decoding in a real engine, with and without drafts: what `nearfree tune` asks of each engine."""

from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

from msgspec import Struct

from nearfree.core.drafting import Drafting, Steps
from nearfree.errors import ConfigError
from nearfree.log.events import EngineLoaded


class Decoded(Struct, frozen=True, kw_only=True):
    """One decode of one prompt: what came out, in which steps, and what it took.

    Times are those of decoding alone, from the first token, which the prompt's own forward gives,
    to the last one.
    """

    tokens: tuple[int, ...]
    """The ids of the output, the first among them; an end of text is the last one where it came."""
    steps: Steps | None
    """None where the engine's own loop does not tell them."""
    wall_s: float
    process_s: float
    """CPU time of all threads of this process."""
    draft_s: float = 0.0
    """Of `wall_s`, what drafting took, where it is known."""


class Generator(Protocol):
    """A model in an engine that decodes token ids, made as `GENERATORS` says it.

    Its class is called with `GeneratorOptions`. Nothing of it is timed but `decode`.
    """

    loop: str
    """What speculates, in words: the engine's own loop, or this project's over which calls."""

    def exact(self, threads: int, positions: int, rows: int) -> bool:
        """Return whether outputs are the same whatever is drafted.

        They are where no row's numbers depend on how many rows a forward has. What is replayed is
        then exact, else an estimate.

        Parameters
        ----------
        positions
            That were in the cache at the end.
        rows
            Of a forward, at most.
        """

    def tokens(self, text: str) -> tuple[int, ...]:
        """Return the ids of a user's message as the model's chat template wraps it."""

    def decode(
        self, prompt: Sequence[int], drafting: Drafting, limit: int, draws: Sequence[float] = ()
    ) -> Decoded:
        """Decode after a prompt, up to `limit` tokens or the end of text.

        A prompt's cache may be kept for the next call with the same one.

        Parameters
        ----------
        draws
            The numbers that draw the tokens, `limit` of them, as of `core.sampling`; none are
            drawn without, but decoded greedily.
        """

    def decode_all(
        self,
        prompts: Sequence[Sequence[int]],
        drafting: Drafting,
        limit: int,
        draws: Sequence[Sequence[float]],
    ) -> list[Decoded]:
        """Decode after several prompts at once, in `GeneratorOptions.batch` slots.

        Engines that are not of `BATCHED` have no such function.

        Parameters
        ----------
        draws
            As of `decode`, of each prompt.
        """

    def drafts(self, prompt: Sequence[int], output: Sequence[int], drafting: Drafting) -> Any:
        """Return what a drafter offers over a known output, as `Available` of `core.drafting`."""

    def margin(self, tokens: Sequence[int], *, repack: bool) -> float | None:
        """Return by how much the best logit after some tokens leads the second, None if unknown.

        Parameters
        ----------
        repack
            As of `Drafting`: which storage of the weights is asked.
        """

    def loaded(self) -> EngineLoaded:
        """Return what is on record of what ran."""

    def close(self) -> None:
        """Give everything back."""


class GeneratorOptions(Struct, frozen=True, kw_only=True):
    """What a generator is made of."""

    release: str
    model: Path
    """The GGUF file; its bytes were compared with `sha256`."""
    name: str
    """What the log calls the model."""
    sha256: str
    file_type: str
    positions: int
    """Of a prompt with its output, at most."""
    rows: int
    """Of one forward, at most: 1 + K."""
    draft_model: Path | None = None
    temperature: float = 0.0
    """Of sampling; 0 is greedy."""
    batch: int = 1
    """Slots in which prompts are decoded at once."""
    repack: bool = True
    """How the weights are stored of which a vocabulary is asked, where several ways are decoded."""


GENERATORS: Mapping[str, str] = {
    "llama_cpp": "nearfree.engines.llama_cpp_generator:LlamaCppGenerator",
    "openvino": "nearfree.engines.openvino_generator:OpenVinoGenerator",
}
"""Module and class of each engine's generator."""
SAMPLED = ("llama_cpp",)
"""The engines whose tokens are drawn by numbers that are given to them."""
BATCHED = ("llama_cpp",)
"""The engines that decode several prompts at once here."""


def make_generator(engine: str, options: GeneratorOptions) -> Generator:
    """Return an engine's generator, with its libraries and weights loaded.

    Raises
    ------
    ConfigError
        No such engine decodes here.
    EvidenceError
        Its files are not here, or it does not take the model.
    """
    if engine not in GENERATORS:
        raise ConfigError(
            f"{engine!r:.60} is no engine that decodes here",
            remedy=f"Choose from {', '.join(GENERATORS)}",
        )
    module, _, name = GENERATORS[engine].partition(":")
    refuse_sampling(engine, options.temperature)
    refuse_batch(engine, options.batch)
    made: Generator = getattr(import_module(module), name)(options)
    return made


def refuse_sampling(engine: str, temperature: float) -> None:
    """Raise ConfigError where an engine would draw tokens by numbers of its own."""
    if temperature and engine not in SAMPLED:
        raise ConfigError(
            f"{engine} draws tokens inside its own pipeline, by numbers that what is drafted "
            "shifts: no output could be compared, and nothing replayed",
            remedy=f"Decode greedily, without --temperature, or in {' or '.join(SAMPLED)}",
        )


def refuse_batch(engine: str, batch: int) -> None:
    """Raise ConfigError where an engine would decode several prompts and tell no steps of them."""
    if batch > 1 and engine not in BATCHED:
        raise ConfigError(
            f"{engine} streams the tokens of one prompt alone: of several at once its pipeline "
            "tells neither when their decoding began nor which steps were whose",
            remedy=f"Decode one at a time, without --batch, or in {' or '.join(BATCHED)}",
        )
