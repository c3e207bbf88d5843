"""Prompts, outputs and token ids, stored in a folder beside the results root.

No event holds them, since a log cannot be edited. The folder may be deleted: no number is lost, and
a later run decodes the reference outputs again.
"""

import hashlib
from collections.abc import Sequence
from pathlib import Path

import msgspec
from msgspec import Struct

from nearfree.core.drafting import Drafting
from nearfree.core.plan import DecodePlan
from nearfree.log.document import replace
from nearfree.log.names import Layout
from nearfree.log.reader import UNREADABLE


def texts_folder(layout: Layout) -> Path:
    """Return the folder beside a results root that holds its texts: its name with `.texts`."""
    root = layout.root.absolute()
    return root.with_name(f"{root.name}.texts")


def ids_sha256(tokens: Sequence[int]) -> str:
    """Return the SHA-256 of token ids, as decimal numbers separated by blanks."""
    return hashlib.sha256(" ".join(map(str, tokens)).encode()).hexdigest()


class StoredText(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One prompt and its output without drafts, as text and token ids."""

    prompt: str
    prompt_ids: tuple[int, ...]
    output_ids: tuple[int, ...]


class Texts:
    """The stored texts of one plan's model in one engine.

    A file's name is a digest of all that the output depends on. Threads and the storage of weights
    are included, since both change how sums are rounded.
    """

    def __init__(self, folder: Path, plan: DecodePlan) -> None:
        self._folder = folder
        sampling = (f"{plan.temperature} {plan.seed}",) if plan.temperature else ()
        self._model = (plan.engine, plan.release, plan.weights.digest, str(plan.limit), *sampling)

    def _path(self, sha256: str, plain: Drafting) -> Path:
        key = " ".join((*self._model, sha256, str(plain.repack), str(plain.threads)))
        key += f" {plain.kv_dtype}" if plain.kv_dtype else ""
        return self._folder / f"{hashlib.sha256(key.encode()).hexdigest()[:24]}.json"

    def find(self, sha256: str, prompt_ids: tuple[int, ...], plain: Drafting) -> StoredText | None:
        """Return the stored text of a prompt; None if there is none, or its token ids differ."""
        try:
            raw = self._path(sha256, plain).read_bytes()
            stored = msgspec.json.decode(raw, type=StoredText)
        except (OSError, *UNREADABLE):
            return None
        return stored if stored.prompt_ids == prompt_ids and stored.output_ids else None

    def keep(self, sha256: str, text: StoredText, plain: Drafting) -> None:
        """Store a prompt with its output in a folder that only its user can read."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        replace(self._path(sha256, plain), msgspec.json.encode(text))
