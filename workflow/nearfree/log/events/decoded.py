"""Events of texts that an engine decoded: step lists and times, and never a token of them."""

from typing import Annotated

from msgspec import Meta, structs

from nearfree.core.drafting import Available, Drafting, Steps
from nearfree.core.names import Name
from nearfree.core.protocols import Natural, Positive
from nearfree.core.weights import Digest
from nearfree.log.events.payload import Payload


class DecodeMeasuredV1(Payload, frozen=True, kw_only=True):
    """Version 1: one prompt decoded alone, which it did not say."""

    type_name = "nearfree.decode.measured.v1"
    engine: Name
    release: str
    model: Name
    weights_sha256: Digest
    draft_sha256: Digest | None = None
    drafting: Drafting
    loop: str
    exact: bool
    prompt_sha256: Digest
    kind: Name
    held_out: bool
    repeat: Natural
    order: Natural
    limit: Positive
    prompt_tokens: Positive
    output_tokens: Positive
    output_sha256: Digest
    same_tokens: Natural
    margin: float | None = None
    steps: Steps | None = None
    wall_s: Annotated[float, Meta(ge=0)]
    process_s: Annotated[float, Meta(ge=0)]
    draft_s: Annotated[float, Meta(ge=0)] = 0.0
    load_1m: float | None = None

    def upcast(self) -> "DecodeMeasured":
        """Say that nothing else was decoded at once."""
        return DecodeMeasured(**structs.asdict(self), batch=1)


class DecodeMeasured(Payload, frozen=True, kw_only=True):
    """One prompt decoded with one setting: how much came out, in which steps, how fast.

    Times are those of decoding, from the first token, which the prompt's own forward gives, to the
    last. Of prompts that are decoded at once they are a prompt's part: what it drafted, and of each
    step that it was in the share of its rows. So those of all prompts add up to the time of all
    steps, in which no prompt's own forward is. `output_sha256` is of the ids of the output, as
    decimal numbers separated by blanks.
    """

    type_name = "nearfree.decode.measured.v2"
    before = DecodeMeasuredV1
    engine: Name
    release: str
    model: Name
    weights_sha256: Digest
    draft_sha256: Digest | None = None
    """The draft model's, where one drafts."""
    drafting: Drafting
    loop: str
    """What speculates: the engine's own loop, or this project's."""
    batch: Positive
    """Slots in which prompts were decoded at once."""
    exact: bool
    """Whether the engine is held to give the same output whatever is drafted."""
    prompt_sha256: Digest
    kind: Name
    held_out: bool
    repeat: Natural
    order: Natural
    limit: Positive
    prompt_tokens: Positive
    output_tokens: Positive
    output_sha256: Digest
    same_tokens: Natural
    """How many of the first tokens are those of the output without drafts."""
    margin: float | None = None
    """At the first difference: by how much the best logit led the second without drafts."""
    steps: Steps | None = None
    """None where the engine's own loop does not tell them."""
    wall_s: Annotated[float, Meta(ge=0)]
    process_s: Annotated[float, Meta(ge=0)]
    draft_s: Annotated[float, Meta(ge=0)] = 0.0
    load_1m: float | None = None


class DraftsTraced(Payload, frozen=True, kw_only=True):
    """What one drafter offers over the output of one prompt, and how much of it is accepted.

    The steps of every K, and of every cut, follow from it.
    """

    type_name = "nearfree.drafts.traced.v1"
    engine: Name
    release: str
    model: Name
    weights_sha256: Digest
    draft_sha256: Digest | None = None
    drafting: Drafting
    """The drafter, with the longest K that is told of."""
    prompt_sha256: Digest
    kind: Name
    held_out: bool
    limit: Positive
    output_tokens: Positive
    output_sha256: Digest
    available: Available
