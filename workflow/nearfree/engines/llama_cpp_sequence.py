"""A sequence of a llama.cpp context: its prompt's forward, its steps, and the choice of tokens."""

from collections.abc import Sequence
from typing import NamedTuple

from nearfree.core.drafting import agreed_length
from nearfree.core.sampling import sampled_token
from nearfree.engines.llama_cpp import Context, Model


class TokenChoice(NamedTuple):
    """How output tokens are chosen: sampled by random numbers or, without them, the best."""

    temperature: float = 0.0
    draws: tuple[float, ...] = ()
    prompt: int = 0
    """The number of tokens of the prompt."""

    def token(self, context: Context, row: int, position: int) -> int:
        """Return the token after `position`, whose logits are in a row of the last forward."""
        if not self.draws:
            return context.best(row)
        from numpy import ctypeslib

        logits = ctypeslib.as_array(context.logits(row))
        return sampled_token(logits, self.temperature, self.draws[position + 1 - self.prompt])


GREEDY = TokenChoice()
"""Choose the token with the highest logit."""


class CachedSequence:
    """A sequence of a context's cache, which keeps its prompt until another one starts."""

    def __init__(self, model: Model, context: Context, number: int) -> None:
        self.model, self.context, self._sequence = model, context, number
        self._prompt: tuple[object, ...] = ()
        self._first = 0
        self._cached_tokens: list[int] = []

    def start(self, prompt: Sequence[int], choice: TokenChoice = GREEDY) -> int:
        """Return the first token after a prompt; a cached prompt's forward is not run again."""
        key = (tuple(prompt), choice)
        if key != self._prompt:
            self._prompt = ()
            self._forget(0)
            row = self._fill(prompt)
            self._first = choice.token(self.context, row, len(prompt) - 1)
            self._prompt = key
        self._forget(len(prompt))
        self._cached_tokens = list(prompt)
        return self._first

    def _fill(self, tokens: Sequence[int]) -> int:
        """Decode tokens from the first position on; return the row of the last one's logits."""
        row = 0
        for start in range(0, len(tokens), self.context.rows):
            chunk = tokens[start : start + self.context.rows]
            self.context.decode(chunk, start, sequence=self._sequence, last_only=True)
            row = len(chunk) - 1
        return row

    def logits(self, tokens: Sequence[int]) -> list[float]:
        """Return the logits after some tokens, with a new forward over them."""
        self._prompt = ()
        self._forget(0)
        return list(self.context.logits(self._fill(tokens)))

    def chosen(
        self, drafts: Sequence[int], first_row: int, position: int, choice: TokenChoice
    ) -> list[int]:
        """Return the tokens that the last forward, over a token and its drafts, chooses.

        They end with the first one that differs from its draft, or with an end of text.

        Parameters
        ----------
        first_row
            The token's row among the forward's logits.
        position
            The token's position.
        """
        chosen: list[int] = []
        for row in range(1 + len(drafts)):
            chosen.append(choice.token(self.context, first_row + row, position + row))
            if row == len(drafts) or chosen[-1] != drafts[row] or self.model.ends(chosen[-1]):
                break
        if len(chosen) < 1 + len(drafts):
            self._forget(position + len(chosen))
        return chosen

    def _forget(self, start: int) -> None:
        self.context.forget(start, self._sequence)

    def draft(self, tokens: Sequence[int], count: int) -> list[int]:
        """Return a draft model's next tokens, after updating its cache to the tokens so far."""
        common = agreed_length(self._cached_tokens, tokens)
        del self._cached_tokens[common:]
        self._forget(common)
        drafts: list[int] = []
        new = list(tokens[common:])
        while len(drafts) < count:
            self.context.decode(
                new, len(self._cached_tokens), sequence=self._sequence, last_only=True
            )
            self._cached_tokens += new
            drafts.append(self.context.best(len(new) - 1))
            new = drafts[-1:]
        return drafts

    def choices_after(self, prompt: Sequence[int], output: Sequence[int]) -> list[int]:
        """Return the model's best token after each token of a known output but the last."""
        self.start(prompt)
        chosen: list[int] = []
        inputs, max_rows = list(output[:-1]), self.context.positions
        for start in range(0, len(inputs), max_rows):
            chunk = inputs[start : start + max_rows]
            self.context.decode(chunk, len(prompt) + start, sequence=self._sequence)
            chosen += [self.context.best(row) for row in range(len(chunk))]
        self._forget(len(prompt))
        return chosen

    def close(self) -> None:
        """Free the cache and the weights."""
        self.context.close()
        self.model.close()
