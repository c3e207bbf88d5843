"""Sweeps over N, the plans that group them into one take, and work lists of plans as text."""

import hashlib
from collections.abc import Iterator
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType, json

from nearfree.core.drafting import Drafting
from nearfree.core.names import Name
from nearfree.core.precision import Dtype
from nearfree.core.protocols import Positive, Timing
from nearfree.core.sampling import HOTTEST
from nearfree.core.setting import Setting
from nearfree.core.setting_check import check_setting
from nearfree.core.weights import AnyWeights, Digest
from nearfree.errors import ConfigError

PROFILE_SUFFIX, MODULES_SUFFIX, FORETOLD_SUFFIX = "_profile", "_modules", "_foretold"
"""What the streams beside a study's own end with, after its name: its profiles, and of a model's
study its modules measured apart and what is predicted of it."""


def check_positions(positions: tuple[int, ...]) -> None:
    """Raise ConfigError unless a grid of N rises strictly."""
    if list(positions) != sorted(set(positions)):
        raise ConfigError(
            f"positions {list(positions)} are not strictly rising",
            remedy="List each N once, smallest first",
        )


class Sweep(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One setting over its grid of N, with the baseline N that ratios refer to."""

    setting: Setting
    positions: tuple[Positive, ...]
    baseline: Positive = 1

    def __post_init__(self) -> None:
        check_setting(self.setting)
        check_positions(self.positions)
        if self.baseline not in self.positions:
            raise ConfigError(
                f"the grid {list(self.positions)} lacks its baseline N={self.baseline}",
                remedy="Add the baseline to `positions`",
            )


class PlanBase(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind"):
    """What every plan is: a struct that names its kind."""


class MeasurePlan(PlanBase, frozen=True, kw_only=True, omit_defaults=True, tag="measure"):
    """The sweeps and the protocol of one measuring take, and the models that they name."""

    sweeps: Annotated[tuple[Sweep, ...], Meta(min_length=1)]
    protocol: Timing
    environment: Name
    """The lock under envs/ that the backend's interpreter was made from."""
    models: dict[Name, dict[str, Any]] = {}
    """By name, as `decoders.model` reads them: nothing else of their files."""
    weights: dict[Name, AnyWeights] = {}
    """What an engine runs, by name."""
    curves: Digest | UnsetType = UNSET
    """The curve file, where the platform is simulated: another one is another plan."""

    @property
    def points_a_round(self) -> int:
        """Number of (setting, N) points, so of events, that make one whole round."""
        return sum(len(sweep.positions) for sweep in self.sweeps)


class PromptPart(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A prompt by the SHA-256 of its text, what kind of text it asks for, and what it is for."""

    sha256: Digest
    kind: Name
    held_out: bool
    """Whether nothing is chosen by it."""


class DecodePlan(PlanBase, frozen=True, kw_only=True, omit_defaults=True, tag="decode"):
    """Prompts that an engine decodes: which drafters are traced, and which settings run.

    Each repeat visits every prompt with every setting of `runs`, in a new order; with a batch it
    visits all prompts together. After the first run of a prompt, without drafts, each of `traced`
    is told what it offers over that output.
    """

    engine: Name
    release: str
    model: Name
    weights: AnyWeights
    draft: AnyWeights | None = None
    environment: Name
    prompts: Annotated[tuple[PromptPart, ...], Meta(min_length=1)]
    limit: Annotated[int, Meta(ge=2)]
    """Tokens of an output, at most."""
    positions: Positive
    """Of a prompt with its output, at most."""
    rows: Positive
    """Of a forward, at most."""
    runs: Annotated[tuple[Drafting, ...], Meta(min_length=1)]
    traced: tuple[Drafting, ...] = ()
    weighed: tuple[Drafting, ...] = ()
    """Of a proof: the drafters, with K = 1 where it was open, among which a choice was made."""
    default: Drafting | None = None
    """Of a proof: what the engine itself does by default."""
    defaults: tuple[Drafting, ...] = ()
    """Of a proof: what each type of the engine's own speculation drafts by default."""
    made_from: tuple[str, ...] = ()
    """Of a proof: the takes that the choice was made from, of forwards and of traces."""
    repeats: Positive = 1
    seed: Annotated[int, Meta(ge=0, lt=2**32)] = 0
    """Of the orders of settings, and of the numbers that draw tokens."""
    temperature: Annotated[float, Meta(ge=0, le=HOTTEST)] = 0.0
    """Of sampling; 0 is greedy."""
    batch: Positive = 1
    """Prompts that are decoded at once, in so many slots (`core.batching`)."""


class ProfilePlan(PlanBase, frozen=True, kw_only=True, tag="profile"):
    """The sweeps whose kernels a hardware profiler sees, and how many forwards of each N."""

    sweeps: Annotated[tuple[Sweep, ...], Meta(min_length=1)]
    environment: Name
    forwards: Positive = 1


class ForetellPlan(PlanBase, frozen=True, kw_only=True, tag="foretell"):
    """The model settings that are predicted, at which tolerances, and the form of what is said."""

    sweeps: Annotated[tuple[Sweep, ...], Meta(min_length=1)]
    models: dict[Name, dict[str, Any]]
    tolerances: tuple[Annotated[float, Meta(gt=0, lt=1)], ...]
    form: int = 1
    curves: Digest | UnsetType = UNSET


class ProbePlan(PlanBase, frozen=True, kw_only=True, tag="probe"):
    """What a hardware probe tries, and for how long it tries one dtype at most."""

    dtypes: tuple[Dtype, ...]
    guard_s: Annotated[float, Meta(gt=0)] = 2.0
    rounds: Positive = 7
    curves: Digest | UnsetType = UNSET
    """The curve file, where the platform is simulated."""


class ImportPlan(PlanBase, frozen=True, kw_only=True, tag="import"):
    """The reference files that one import takes in, by name and SHA-256."""

    files: dict[str, str]
    form: int | UnsetType = UNSET
    """What is read of them, where later versions read more: another form is another plan."""


class ExtractPlan(PlanBase, frozen=True, kw_only=True, tag="extract"):
    """The release whose rules are read, and the form of what is read of it."""

    package: str
    version: str
    form: int = 1


class ListPlan(PlanBase, frozen=True, kw_only=True, tag="list"):
    """The binaries of a release whose kernels are listed, and the form of what is said of them."""

    package: str
    version: str
    members: tuple[str, ...]
    """Their paths in the release's wheel."""
    form: int = 1


class CompilePlan(PlanBase, frozen=True, kw_only=True, tag="compile"):
    """The kernel of a release that is compiled, by which lock's compiler, and for which blocks."""

    package: str
    version: str
    file_sha256: Digest
    lock_sha256: Digest
    blocks: tuple[tuple[int, ...], ...]
    """Compute capability, rows, columns and depth of a block, warps and stages."""
    form: int = 1


class CalibratePlan(PlanBase, frozen=True, kw_only=True, omit_defaults=True, tag="calibrate"):
    """The curves that constants are fitted to, by import and platform, and the form of the fit."""

    source: str
    """The stream of the curves."""
    files: dict[str, str]
    """What was imported into it, by name and SHA-256."""
    platforms: tuple[Name, ...]
    epsilon: Annotated[float, Meta(gt=0, lt=1)]
    form: int
    modules: tuple[Name, ...] = ()
    """The modules whose curves count, all of them if none is named."""


class RetractPlan(PlanBase, frozen=True, kw_only=True, tag="retract"):
    """One observation, or one take, that is declared invalid."""

    target: str
    reason: str


RequestedPlan = ProbePlan | MeasurePlan | ForetellPlan
"""What can be asked of a platform."""
Plan = (
    MeasurePlan
    | DecodePlan
    | ProfilePlan
    | ForetellPlan
    | ProbePlan
    | ImportPlan
    | ExtractPlan
    | ListPlan
    | CompilePlan
    | CalibratePlan
    | RetractPlan
)


def plan_digest(plan: Plan) -> str:
    """Return the SHA-256 of a plan's canonical JSON; its first eight digits name the take."""
    return hashlib.sha256(json.encode(plan, order="deterministic")).hexdigest()


class Order(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One take to make: a line of JSON."""

    scope: Name
    stream: Name
    take: Positive
    device: str
    """cpu or cuda: which kind of device the platform is."""
    plan: RequestedPlan
    names: tuple[str, ...] = ()
    """What the driver may call the platform's device; none where no document tells."""


def write_orders(orders: Iterator[Order]) -> str:
    """Return orders as JSON lines."""
    return "".join(f"{msgspec.json.encode(order).decode()}\n" for order in orders)


def read_orders(text: str, where: str) -> list[Order]:
    """Return the orders of a text; ConfigError names the line that is none."""
    orders = []
    for number, line in enumerate(text.splitlines(), start=1):
        try:
            orders.append(msgspec.json.decode(line, type=Order))
        except (msgspec.MsgspecError, RecursionError) as error:
            raise ConfigError(
                f"{where}, line {number} is no order: {error}",
                remedy="Give what `nearfree plan PLATFORM` prints",
            ) from error
    if not orders:
        raise ConfigError(
            f"{where} holds no order", remedy="Give what `nearfree plan PLATFORM` prints"
        )
    return orders
