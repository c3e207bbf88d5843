"""Prompts of a JSON-lines file: what an engine is tuned on, and what is held out."""

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
"""Bytes of a file, prompts in it, and characters of one, at most."""
ALL = "all"
"""What answers and tables call all prompts together, and so no kind of them."""
_FORM = 'Give a JSON object a line: {"prompt": "...", "kind": "code"}'


class _Line(Struct, frozen=True, forbid_unknown_fields=True):
    prompt: Annotated[str, Meta(min_length=1, max_length=LONGEST)]
    kind: Name = "own"


class Prompt(Struct, frozen=True, kw_only=True):
    """A prompt, what kind of text it asks for, and whether nothing is chosen by it."""

    text: str
    kind: Name
    held_out: bool

    @property
    def part(self) -> PromptPart:
        """What a plan says of it, which is not its text."""
        return PromptPart(sha256=sha256(self.text.encode()), kind=self.kind, held_out=self.held_out)


def shipped_prompts() -> Path:
    """Return the file of the prompts that the package ships."""
    return shipped(FILE)


def read_prompts(path: Path) -> tuple[Prompt, ...]:
    """Return a file's prompts; of each kind the second, the fourth and so on are held out.

    Raises
    ------
    ConfigError
        The file is not there, is empty or too large, a line is no prompt or of the kind `all`, a
        prompt is there twice, or a kind has one alone, which would leave none to hold out.
    """
    lines = [line for line in _text(path).split("\n") if line.strip()]
    if not lines:
        raise ConfigError(f"{path} holds no prompt", remedy=_FORM)
    if len(lines) > MOST:
        raise ConfigError(
            f"{path} holds {len(lines)} prompts, more than {MOST}", remedy="Give fewer of them"
        )
    seen: Counter[str] = Counter()
    texts: set[str] = set()
    prompts = []
    for number, line in enumerate(lines, start=1):
        read = _read(line, f"{path}, prompt {number}")
        if read.prompt in texts:
            raise ConfigError(f"{path}, prompt {number} was there before", remedy="Leave it out")
        texts.add(read.prompt)
        seen[read.kind] += 1
        held_out = seen[read.kind] % 2 == 0
        prompts.append(Prompt(text=read.prompt, kind=read.kind, held_out=held_out))
    alone = next((kind for kind, count in seen.items() if count < 2), None)
    if alone is not None:
        raise ConfigError(
            f"{path} has one prompt alone of the kind {alone}",
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


def _read(line: str, where: str) -> _Line:
    try:
        read = msgspec.json.decode(line, type=_Line)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise ConfigError(f"{where} is no prompt: {error}", remedy=_FORM) from error
    if "\0" in read.prompt or not read.prompt.strip():
        raise ConfigError(f"{where} is blank or holds a null character", remedy=_FORM)
    if read.kind == ALL:
        raise ConfigError(
            f"{where} is of the kind {ALL}, which stands for all prompts together",
            remedy="Name the kind otherwise",
        )
    return read
