"""The weights of an engine's model: a file by its SHA-256, or random ones by what makes them."""

import hashlib
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct, json

from nearfree.core.names import Name

Digest = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}$(?!\n)")]
"""A SHA-256, as its hexadecimal digits."""
FileType = Literal["f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "q4_k_m", "q5_k_m", "q6_k"]
"""What random weights can be stored as: GGUF's file types that the engine itself makes."""


class Weights(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind"):
    """What an engine's study runs: `file_type` is GGUF's name of the formats that are stored."""

    file_type: Name

    @property
    def digest(self) -> str:
        """What tells weights of one name apart: 12 hex digits."""
        return hashlib.sha256(json.encode(self, order="deterministic")).hexdigest()[:12]


class WeightsFile(Weights, frozen=True, kw_only=True, tag="file"):
    """A GGUF file that is known by its bytes."""

    sha256: Digest

    @property
    def digest(self) -> str:
        """The first digits of the file's SHA-256."""
        return self.sha256[:12]


class RandomWeights(Weights, frozen=True, kw_only=True, tag="random"):
    """Random weights of a model's shape, written by this project and stored by the engine."""

    config: dict[str, Any]
    """The model's config.json."""
    release: str
    """The engine's release whose function stores them."""
    seed: int = 0
    form: int = 1
    """How they are drawn and written; another form is another file."""


AnyWeights = WeightsFile | RandomWeights
