"""The weights of an engine's model: a file by its SHA-256, or random weights by their recipe."""

import hashlib
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct, json

from nearfree.core.bounds import Text
from nearfree.core.names import Name
from nearfree.core.protocols import Natural, Positive

Digest = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}$(?!\n)")]
"""A SHA-256 as hexadecimal digits."""
FileType = Literal["f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "q4_k_m", "q5_k_m", "q6_k"]
"""The storage formats of random weights: GGUF file types that the engine can write."""


class Weights(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind"):
    """The weights that an engine's study runs; `file_type` is GGUF's name of their format."""

    file_type: Name

    @property
    def digest(self) -> str:
        """A digest that distinguishes weights of one name: 12 hex digits."""
        return hashlib.sha256(json.encode(self, order="deterministic")).hexdigest()[:12]


class WeightsFile(Weights, frozen=True, kw_only=True, tag="file"):
    """A GGUF file, identified by its SHA-256."""

    sha256: Digest

    @property
    def digest(self) -> str:
        """The first digits of the file's SHA-256."""
        return self.sha256[:12]


class RandomWeights(Weights, frozen=True, kw_only=True, tag="random"):
    """Random weights of a model's shape, written by this project and quantized by the engine."""

    config: dict[str, Any]
    """The model's config.json."""
    release: Text
    """The engine's release whose function quantizes them."""
    seed: Natural = 0
    form: Positive = 1
    """Version of how they are drawn and written; another form makes another file."""


AnyWeights = WeightsFile | RandomWeights
