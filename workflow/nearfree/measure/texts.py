"""Prompts, outputs and token ids: kept in a folder of their own beside log and report.

A log cannot be cleaned, so that nothing of them is in an event. Whoever deletes the folder loses no
number; a later run decodes once more what it compares with.
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


class Kept(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is kept of one prompt without drafts."""

    prompt: str
    prompt_ids: tuple[int, ...]
    output_ids: tuple[int, ...]


class Texts:
    """The texts of one plan's model in one engine, each under a digest of what it depends on.

    Among that are the threads and the storage of the setting that decodes: both round sums.
    """

    def __init__(self, folder: Path, plan: DecodePlan) -> None:
        self._folder = folder
        drawn = (f"{plan.temperature} {plan.seed}",) if plan.temperature else ()
        self._model = (plan.engine, plan.release, plan.weights.digest, str(plan.limit), *drawn)

    def _path(self, sha256: str, plain: Drafting) -> Path:
        key = " ".join((*self._model, sha256, str(plain.repack), str(plain.threads)))
        return self._folder / f"{hashlib.sha256(key.encode()).hexdigest()[:24]}.json"

    def find(self, sha256: str, prompt_ids: tuple[int, ...], plain: Drafting) -> Kept | None:
        """Return what is kept of a prompt, None if nothing is or its ids were others."""
        try:
            raw = self._path(sha256, plain).read_bytes()
            kept = msgspec.json.decode(raw, type=Kept)
        except (OSError, *UNREADABLE):
            return None
        return kept if kept.prompt_ids == prompt_ids and kept.output_ids else None

    def keep(self, sha256: str, kept: Kept, plain: Drafting) -> None:
        """Put a prompt with its output where only its user reads it."""
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        replace(self._path(sha256, plain), msgspec.json.encode(kept))
