"""Prompts of a JSON-lines file: those on which an engine is tuned, and those held out."""

from collections import Counter
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from nearfree.core.names import Name
from nearfree.core.plan import PromptPart
from nearfree.errors import ConfigError
from nearfree.log.line import sha256
from nearfree.shipped import shipped

FILE = "config/prompts.jsonl"
"""The prompts that the package ships."""
LARGEST, MOST, LONGEST = 1 << 20, 256, 1 << 16
"""Limits: bytes of a file, prompts in it, and characters of a prompt."""
ALL = "all"
"""The name of all prompts together in answers and tables, which no kind may have."""
_FORM = 'Give one JSON object per line: {"prompt": "...", "kind": "code"}'


class _Line(Struct, frozen=True, forbid_unknown_fields=True):
    prompt: Annotated[str, Meta(min_length=1, max_length=LONGEST)]
    kind: Name = "own"


class Prompt(Struct, frozen=True, kw_only=True):
    """A prompt, the kind of text that it requests, and whether tuning must not use it."""

    text: str
    kind: Name
    held_out: bool

    @property
    def part(self) -> PromptPart:
        """The entry of the prompt in a plan, which has a digest instead of the text."""
        return PromptPart(sha256=sha256(self.text.encode()), kind=self.kind, held_out=self.held_out)


def shipped_prompts() -> Path:
    """Return the path of the prompts that the package ships."""
    return shipped(FILE)


def read_prompts(path: Path) -> tuple[Prompt, ...]:
    """Return a file's prompts; of each kind the second, the fourth and so on are held out.

    Raises
    ------
    ConfigError
        The file is absent, empty or too large; a line is no prompt or has the kind `all`; a prompt
        occurs twice; or a kind has only one prompt, so that none could be held out.
    """
    lines = [line for line in _text(path).split("\n") if line.strip()]
    if not lines:
        raise ConfigError(f"{path} holds no prompt", remedy=_FORM)
    if len(lines) > MOST:
        raise ConfigError(
            f"{path} holds {len(lines)} prompts, more than {MOST}", remedy="Give fewer of them"
        )
    counts: Counter[str] = Counter()
    texts: set[str] = set()
    prompts = []
    for number, line in enumerate(lines, start=1):
        entry = _read(line, f"{path}, prompt {number}")
        if entry.prompt in texts:
            raise ConfigError(f"{path}, prompt {number} is a duplicate", remedy="Leave it out")
        texts.add(entry.prompt)
        counts[entry.kind] += 1
        held_out = counts[entry.kind] % 2 == 0
        prompts.append(Prompt(text=entry.prompt, kind=entry.kind, held_out=held_out))
    single_kind = next((kind for kind, count in counts.items() if count < 2), None)
    if single_kind is not None:
        raise ConfigError(
            f"{path} has only one prompt of the kind {single_kind}",
            remedy="Give at least two of each kind: half of them are held out",
        )
    return tuple(prompts)


def _text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            raw = file.read(LARGEST + 1)
        if len(raw) > LARGEST:
            raise ConfigError(
                f"{path} has more than {LARGEST} bytes", remedy="Give fewer or shorter prompts"
            )
        return raw.decode()
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be read: {error.strerror}", remedy="Name a file of prompts"
        ) from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path} is no UTF-8: {error.reason}", remedy=_FORM) from error


def _read(line: str, place: str) -> _Line:
    try:
        entry = msgspec.json.decode(line, type=_Line)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise ConfigError(f"{place} is no prompt: {error}", remedy=_FORM) from error
    if "\0" in entry.prompt or not entry.prompt.strip():
        raise ConfigError(f"{place} is blank or holds a null character", remedy=_FORM)
    if entry.kind == ALL:
        raise ConfigError(
            f"{place} is of the kind {ALL}, which stands for all prompts together",
            remedy="Choose another name for the kind",
        )
    return entry
