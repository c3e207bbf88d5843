"""Sweeps over N, the plans of takes, and orders: plans of a platform as JSON lines."""

import hashlib
from collections.abc import Iterator
from typing import Annotated, Any

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType, json

from nearfree.core.bounds import Text, Tolerance
from nearfree.core.drafting import Drafting
from nearfree.core.names import Name
from nearfree.core.precision import Dtype
from nearfree.core.protocols import Positive, Timing
from nearfree.core.sampling import HOTTEST
from nearfree.core.setting import Setting
from nearfree.core.setting_check import check_setting
from nearfree.core.weights import AnyWeights, Digest
from nearfree.errors import ConfigError

PROFILE_SUFFIX, MODULES_SUFFIX, PREDICTIONS_SUFFIX = "_profile", "_modules", "_foretold"
"""Suffixes of a study's other streams: its profiles, and for a model's study its isolated modules
and its recorded predictions."""


def study_of(stream: str) -> str:
    """Return the study that a stream of measurements or predictions belongs to."""
    return stream.removesuffix(MODULES_SUFFIX).removesuffix(PREDICTIONS_SUFFIX)


def check_positions(positions: tuple[int, ...]) -> None:
    """Raise ConfigError unless a grid of N is strictly increasing."""
    if list(positions) != sorted(set(positions)):
        raise ConfigError(
            f"positions {list(positions)} are not strictly rising",
            remedy="List each N once, smallest first",
        )


class Sweep(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One setting with its grid of N, and the baseline N that ratios refer to."""

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

    def resolved(self, dtype: str) -> Setting:
        """Return the setting with `auto` replaced by a dtype, that of the machine."""
        auto = self.setting.dtype == "auto"
        return msgspec.structs.replace(self.setting, dtype=dtype) if auto else self.setting


class PlanBase(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="kind"):
    """Base of all plans: a struct whose JSON names its kind."""


class MeasurePlan(PlanBase, frozen=True, kw_only=True, omit_defaults=True, tag="measure"):
    """The sweeps and the protocol of one measured take, and the models that they name."""

    sweeps: Annotated[tuple[Sweep, ...], Meta(min_length=1)]
    protocol: Timing
    environment: Name
    """The lock under envs/ from which the backend's environment is made."""
    models: dict[Name, dict[str, Any]] = {}
    """Models by name, as the fields of config.json that `decoders.model` reads."""
    weights: dict[Name, AnyWeights] = {}
    """The weights that an engine runs, by name."""
    curves: Digest | UnsetType = UNSET
    """The curve file of a simulated platform; another file makes another plan."""

    @property
    def points_a_round(self) -> int:
        """Number of (setting, N) points, and so of events, in one whole round."""
        return sum(len(sweep.positions) for sweep in self.sweeps)


class PromptPart(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A prompt by the SHA-256 of its text, with its kind of text and its purpose."""

    sha256: Digest
    kind: Name
    held_out: bool
    """Whether it is held out: used for the proof, not for the choice of a setting."""


class DecodePlan(PlanBase, frozen=True, kw_only=True, omit_defaults=True, tag="decode"):
    """Prompts that an engine decodes, the settings that run, and the drafters that are traced.

    Each repeat visits every prompt with every setting of `runs`, in a new order; with a batch it
    visits all prompts together. `traced` drafters are traced along the output of a prompt's first
    run.
    """

    engine: Name
    release: Text
    model: Name
    weights: AnyWeights
    draft: AnyWeights | None = None
    environment: Name
    prompts: Annotated[tuple[PromptPart, ...], Meta(min_length=1)]
    limit: Annotated[int, Meta(ge=2)]
    """Largest number of tokens of an output."""
    positions: Positive
    """Largest number of tokens of a prompt with its output."""
    rows: Positive
    """Largest number of rows of a forward."""
    runs: Annotated[tuple[Drafting, ...], Meta(min_length=1)]
    traced: tuple[Drafting, ...] = ()
    weighed: tuple[Drafting, ...] = ()
    """In a proof: the candidate drafters of the choice, with K = 1 if K was open."""
    default: Drafting | None = None
    """In a proof: the engine's default setting."""
    defaults: tuple[Drafting, ...] = ()
    """In a proof: the default setting of each of the engine's own drafters."""
    made_from: tuple[Text, ...] = ()
    """In a proof: the takes of forwards and of traces on which the choice is based."""
    form: Positive = 1
    """In a proof: the version of the choice (`derive.tune.choice.FORM`)."""
    repeats: Positive = 1
    seed: Annotated[int, Meta(ge=0, lt=2**32)] = 0
    """Seed of the orders of settings, and of sampling."""
    temperature: Annotated[float, Meta(ge=0, le=HOTTEST)] = 0.0
    """Temperature of sampling; 0 is greedy."""
    batch: Positive = 1
    """Number of slots in which prompts are decoded together (`core.batching`)."""


class ProfilePlan(PlanBase, frozen=True, kw_only=True, tag="profile"):
    """The sweeps to run under a hardware profiler, and the number of forwards per N."""

    sweeps: Annotated[tuple[Sweep, ...], Meta(min_length=1)]
    environment: Name
    forwards: Positive = 1


class ForetellPlan(PlanBase, frozen=True, kw_only=True, tag="foretell"):
    """The model settings and tolerances to predict, and the version of the predictions' form."""

    sweeps: Annotated[tuple[Sweep, ...], Meta(min_length=1)]
    models: dict[Name, dict[str, Any]]
    tolerances: tuple[Tolerance, ...]
    form: Positive = 1
    curves: Digest | UnsetType = UNSET


class ProbePlan(PlanBase, frozen=True, kw_only=True, tag="probe"):
    """The dtypes that a hardware probe times, and the time limit per dtype."""

    dtypes: tuple[Dtype, ...]
    guard_s: Annotated[float, Meta(gt=0)] = 2.0
    rounds: Positive = 7
    curves: Digest | UnsetType = UNSET
    """The curve file of a simulated platform."""


class ImportPlan(PlanBase, frozen=True, kw_only=True, tag="import"):
    """The reference files that one import reads, by name and SHA-256."""

    files: dict[Text, Digest]
    form: Positive | UnsetType = UNSET
    """Version of what is read of them; another form makes another plan."""


class ExtractPlan(PlanBase, frozen=True, kw_only=True, tag="extract"):
    """The release whose rules are read, and the version of the extraction."""

    package: Text
    version: Text
    form: Positive = 1


class ListPlan(PlanBase, frozen=True, kw_only=True, tag="list"):
    """The binaries of a release whose kernels are listed, and the version of the listing."""

    package: Text
    version: Text
    members: tuple[Text, ...]
    """The binaries' paths in the release's wheel."""
    form: Positive = 1


class CompilePlan(PlanBase, frozen=True, kw_only=True, tag="compile"):
    """A release's kernel to compile, the lock of the compiler, and the blocks to compile for."""

    package: Text
    version: Text
    file_sha256: Digest
    lock_sha256: Digest
    blocks: tuple[tuple[Positive, ...], ...]
    """Per block: compute capability, block_m, block_n, block_k, warps and stages."""
    form: Positive = 1


class CalibratePlan(PlanBase, frozen=True, kw_only=True, omit_defaults=True, tag="calibrate"):
    """The curves that constants are fitted to, by import and platform; the version of the fit."""

    source: Text
    """The stream of the curves."""
    files: dict[Text, Digest]
    """The files imported into the stream, by name and SHA-256."""
    platforms: tuple[Name, ...]
    epsilon: Tolerance
    form: Positive
    modules: tuple[Name, ...] = ()
    """The modules whose curves are used; all if empty."""


class RetractPlan(PlanBase, frozen=True, kw_only=True, tag="retract"):
    """One observation, or one take, that is declared invalid."""

    target: Text
    reason: Text


RequestedPlan = ProbePlan | MeasurePlan | ForetellPlan
"""The plans that the config can request of a platform."""
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
    """The platform's kind of device, cpu or cuda."""
    plan: RequestedPlan
    names: tuple[str, ...] = ()
    """The driver's possible names of the platform's device; empty if unknown."""


def write_orders(orders: Iterator[Order]) -> str:
    """Return orders as JSON lines."""
    return "".join(f"{msgspec.json.encode(order).decode()}\n" for order in orders)


def read_orders(text: str, where: str) -> list[Order]:
    """Return the orders in a text; ConfigError names the first invalid line."""
    orders = []
    for number, line in enumerate(text.splitlines(), start=1):
        try:
            orders.append(msgspec.json.decode(line, type=Order))
        except (msgspec.MsgspecError, RecursionError, ConfigError) as error:
            raise ConfigError(
                f"{where}, line {number} is no order: {error}",
                remedy="Give what `nearfree plan PLATFORM` prints",
            ) from error
    if not orders:
        raise ConfigError(
            f"{where} holds no order", remedy="Give what `nearfree plan PLATFORM` prints"
        )
    return orders
