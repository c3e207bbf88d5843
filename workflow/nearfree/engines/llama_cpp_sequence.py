"""A sequence of a llama.cpp context: its prompt's forward, steps, and how tokens are chosen."""

from collections.abc import Sequence
from typing import NamedTuple

from nearfree.core.drafting import agreed
from nearfree.core.sampling import drawn
from nearfree.engines.llama_cpp import Context, Model


class Choose(NamedTuple):
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


GREEDY = Choose()
"""The best token each time."""


class CachedSequence:
    """A sequence of a context's cache, which a prompt stays in until another one comes."""

    def __init__(self, model: Model, context: Context, number: int) -> None:
        self.model, self.context, self._number = model, context, number
        self._prompt: tuple[object, ...] = ()
        self._first = 0
        self._held: list[int] = []

    def threads(self, many: int) -> None:
        """Set the threads of the forwards to come."""
        self.context.set_threads(many)

    def start(self, prompt: Sequence[int], choose: Choose = GREEDY) -> int:
        """Return the first token after a prompt, whose forward is not run again if it is held."""
        asked = (tuple(prompt), choose)
        if asked != self._prompt:
            self._prompt = ()
            self._forget(0)
            last = self._fill(prompt)
            self._first = choose.token(self.context, last, len(prompt) - 1)
            self._prompt = asked
        self._forget(len(prompt))
        self._held = list(prompt)
        return self._first

    def _fill(self, tokens: Sequence[int]) -> int:
        """Decode tokens from the first position on; return the row of the last one's logits."""
        last = 0
        for first in range(0, len(tokens), self.context.rows):
            part = tokens[first : first + self.context.rows]
            self.context.decode(part, first, sequence=self._number, last_only=True)
            last = len(part) - 1
        return last

    def logits(self, tokens: Sequence[int]) -> list[float]:
        """Return the logits after some tokens, whose forward is run anew."""
        self._prompt = ()
        self._forget(0)
        return list(self.context.logits(self._fill(tokens)))

    def chosen(self, drafts: Sequence[int], first: int, place: int, choose: Choose) -> list[int]:
        """Return what the last forward over a token and its drafts chooses, up to an end.

        Parameters
        ----------
        first
            The token's row among the forward's logits.
        place
            Its position.
        """
        chosen: list[int] = []
        for row in range(1 + len(drafts)):
            chosen.append(choose.token(self.context, first + row, place + row))
            if row == len(drafts) or chosen[-1] != drafts[row] or self.model.ends(chosen[-1]):
                break
        if len(chosen) < 1 + len(drafts):
            self._forget(place + len(chosen))
        return chosen

    def _forget(self, first: int) -> None:
        self.context.forget(first, self._number)

    def go_on(self, known: Sequence[int], many: int) -> list[int]:
        """Return the next tokens of a draft model, whose cache follows what is known."""
        kept = agreed(self._held, known)
        del self._held[kept:]
        self._forget(kept)
        drafts: list[int] = []
        new = list(known[kept:])
        while len(drafts) < many:
            self.context.decode(new, len(self._held), sequence=self._number, last_only=True)
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
            self.context.decode(part, len(prompt) + first, sequence=self._number)
            chosen += [self.context.best(row) for row in range(len(part))]
        self._forget(len(prompt))
        return chosen

    def close(self) -> None:
        """Give the cache and the weights back."""
        self.context.close()
        self.model.close()
