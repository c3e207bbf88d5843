"""Events of texts that an engine decoded: step lists and times, never the tokens themselves."""

from msgspec import structs

from nearfree.core.bounds import AtLeastZero, Text
from nearfree.core.drafting import Available, Drafting, Steps
from nearfree.core.names import Name
from nearfree.core.protocols import Natural, Positive
from nearfree.core.weights import Digest
from nearfree.log.events.payload import Payload


class DecodeMeasuredV1(Payload, frozen=True, kw_only=True):
    """Version 1: one prompt decoded alone; without the field `batch`."""

    type_name = "nearfree.decode.measured.v1"
    engine: Name
    release: Text
    model: Name
    weights_sha256: Digest
    draft_sha256: Digest | None = None
    drafting: Drafting
    loop: Text
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
    wall_s: AtLeastZero
    process_s: AtLeastZero
    draft_s: AtLeastZero = 0.0
    load_1m: AtLeastZero | None = None

    def upcast(self) -> "DecodeMeasured":
        """Return version 2 with a batch of one prompt."""
        return DecodeMeasured(**structs.asdict(self), batch=1)


class DecodeMeasured(Payload, frozen=True, kw_only=True):
    """One prompt decoded with one drafter setting: its output length, its steps and its times.

    Times cover decoding, from the first token, which the prompt's prefill gives, to the last. For
    prompts decoded in one batch they are the prompt's part: its own drafting, and of each step that
    it was in the share of its rows. So the times of all prompts add up to the time of all steps,
    without prefills. `output_sha256` is over the output's token ids, as decimal numbers separated
    by blanks.
    """

    type_name = "nearfree.decode.measured.v2"
    before = DecodeMeasuredV1
    engine: Name
    release: Text
    model: Name
    weights_sha256: Digest
    draft_sha256: Digest | None = None
    """SHA-256 of the draft model's file, if a draft model drafts."""
    drafting: Drafting
    loop: Text
    """Whose loop speculates: the engine's own, or this project's."""
    batch: Positive
    """Number of slots in which prompts were decoded together."""
    exact: bool
    """Whether the engine must give the same output with any drafts."""
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
    """Length of the longest common prefix with the output without drafts, in tokens."""
    margin: float | None = None
    """At the first difference, the best logit minus the second best, without drafts."""
    steps: Steps | None = None
    """None if the engine's own loop does not report them."""
    wall_s: AtLeastZero
    process_s: AtLeastZero
    draft_s: AtLeastZero = 0.0
    load_1m: AtLeastZero | None = None
    handover_ns: AtLeastZero | None = None
    """Longest round trip of a value between the decode's CPUs, before or after it."""


class DraftsTraced(Payload, frozen=True, kw_only=True):
    """The drafts that one drafter offers along one prompt's output, and how many are accepted.

    The steps for every K and every cutoff follow from it.
    """

    type_name = "nearfree.drafts.traced.v1"
    engine: Name
    release: Text
    model: Name
    weights_sha256: Digest
    draft_sha256: Digest | None = None
    drafting: Drafting
    """The drafter, with the largest K that was traced."""
    prompt_sha256: Digest
    kind: Name
    held_out: bool
    limit: Positive
    output_tokens: Positive
    output_sha256: Digest
    available: Available
