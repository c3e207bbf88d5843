"""Events of releases' source code: fetched files, extracted rules, tuned configurations."""

from typing import Literal

from msgspec import Struct

from nearfree.log.events.payload import Payload


class SourceMember(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """One file of a package's artefact, by its path inside the artefact."""

    path: str
    sha256: str
    size: int
    """Bytes."""


class SourceFetched(Payload, frozen=True, kw_only=True):
    """The files of a release that rules are read from, and what their hashes were checked against.

    `member`: each file against the wheel's own RECORD, the wheel as a whole was not read;
    `artefact`: the whole artefact against the package index.
    """

    type_name = "nearfree.source.fetched.v1"
    package: str
    version: str
    artefact: str
    artefact_sha256: str
    verified: Literal["member", "artefact"]
    members: tuple[SourceMember, ...]


class Quote(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """A place in a source file: first and last line, and what stands there, shortened."""

    file: str
    lines: tuple[int, int]
    text: str


class Branch(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """One way through a rule: under these conditions, this value; each quoted from the source."""

    when: tuple[str, ...]
    value: str
    quotes: tuple[Quote, ...]


class RuleExtracted(Payload, frozen=True, kw_only=True):
    """A rule read from a release's source: its branches, in terms of named inputs.

    Conditions and values are expressions in Python's syntax over `inputs`, of a closed set of
    operations; `functions` are helpers with loops, in the same form. `meaning` is a digest of
    what the rule answers, not of its text: two releases with the same digest have the same rule.
    """

    type_name = "nearfree.rule.extracted.v1"
    package: str
    version: str
    rule: str
    symbol: str
    inputs: tuple[str, ...]
    branches: tuple[Branch, ...]
    functions: tuple[str, ...] = ()
    meaning: str
    points: int
    """Points at which path enumeration and interpretation were compared; all agreed."""


class TunedIndexed(Payload, frozen=True, kw_only=True):
    """One tuned configuration file: what it is for and, in the file's order, BLOCK_SIZE_M by M.

    `block_size_n`, `block_size_k` and `group_size_m` have an item for each of `tokens`, or none
    where an entry does not say it; events of earlier versions have none. `odd` says why a file's
    name or content has not the known form; such a file chooses nothing.
    """

    type_name = "nearfree.tuned.indexed.v1"
    package: str
    version: str
    file: str
    sha256: str
    experts: int | None = None
    d_ff: int | None = None
    device: str | None = None
    dtype: str | None = None
    block_shape: tuple[int, int] | None = None
    per_channel_quant: bool = False
    down: bool = False
    triton: str | None = None
    tokens: tuple[int, ...] = ()
    block_size_m: tuple[int, ...] = ()
    block_size_n: tuple[int, ...] = ()
    block_size_k: tuple[int, ...] = ()
    group_size_m: tuple[int, ...] = ()
    lines: tuple[int, ...] = ()
    """The line of each entry, where each stands at the start of a line of its own."""
    odd: str | None = None
