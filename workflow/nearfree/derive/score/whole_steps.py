"""Published steps of whole models as deployments, with the T that `predict` would have answered."""

import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from msgspec import structs
from packaging.version import InvalidVersion, Version

from nearfree.backends.names import BackendRelease
from nearfree.config.files import Config, DeploymentSpec
from nearfree.core.precision import PLAIN
from nearfree.decoders.model_file import find_model_file
from nearfree.decoders.ranks.engines import SGLANG, VLLM
from nearfree.decoders.ranks.modules import requests
from nearfree.derive.engine_step.form import StepConstants, between_us, host_us
from nearfree.derive.predict.answers import Answerer
from nearfree.derive.predict.forecast.deployment import Deployment, Questions
from nearfree.derive.predict.forecast.draft import Drafted, as_head, as_own, draft_of
from nearfree.derive.predict.forecast.expand_deployments import deployments as expanded
from nearfree.derive.predict.forecast.expand_deployments import expand
from nearfree.derive.predict.forecast.on_record import versions_of
from nearfree.derive.predict.forecast.total import ROLES, total
from nearfree.derive.score.prompts import Prompts, prompts_of
from nearfree.derive.score.published_formats import as_published, formats_of
from nearfree.errors import ConfigError, NearfreeError, RefusedError
from nearfree.hardware.platforms import resolve
from nearfree.public.whole_models import HEADS, MODELS, WholeRow

ROUTING = "power_law:1.01"
"""Assumed distribution of real tokens over experts. Balanced loads, this power law and that of
exponent 1.2 were compared on all rows of the project; this one had the least error."""
_PACKAGES = {**{engine.name: engine.name for engine in (VLLM, SGLANG)}, "trtllm": "tensorrt-llm"}
"""The package of each engine that a row may name."""
_ASSUMED_RELEASE = {"trtllm": "1.2.0"}
"""The release to query where the project has no rules of any release."""
_ATTENTION: dict[tuple[str, str], str] = {(SGLANG.name, "flashinfer"): "flashinfer"}
"""The value of `--attention`, by engine and the engine's own option for its attention backend."""
_IGNORED_FIELDS = {
    "line": 0,
    "ratio": None,
    "isl": None,
    "osl": None,
    "how": "",
    "source": "",
    "draft": "",
}
"""Fields that do not affect a row's deployment."""
_BLACKWELL_SM = 100


class TimedStep(NamedTuple):
    """A row with the answer of `predict`, or its refusal.

    `modules_us` is T of the modules at N, `first_us` at one position; `draft` is the draft that T
    contains, `prompts` are the other requests' prompts in its steps, `sums` the all-reduces of its
    forward; they are 0 and None where there is a refusal. `deployment` is the query, of the release
    `asked`.
    """

    row: WholeRow
    refusal: str | None = None
    deployment: Deployment | None = None
    asked: str = ""
    modules_us: float = 0.0
    first_us: float = 0.0
    draft: Drafted | None = None
    prompts: Prompts | None = None
    sums: int = 0

    def predicted_us(
        self, constants: StepConstants, bandwidth_gb_s: float, *, first: bool = False
    ) -> float:
        """Return T of the step with an engine's constants, in microseconds.

        With `first` it is T(1) instead of T(N).
        """
        if self.deployment is None:
            return float("nan")
        decoder, row = self.deployment.decoder, self.row
        positions = 1 if first else row.positions
        tokens = np.array([requests(row.batch, self.deployment.parallel.dp) * positions])
        step: dict[str, Any] = {
            "layers": decoder.pairs, "d_model": decoder.d_model, "bandwidth_gb_s": bandwidth_gb_s,
        }  # fmt: skip
        between = between_us(constants, tokens=tokens.astype(np.float64), sums=self.sums, **step)
        host = host_us(constants, batch=row.batch)
        modules = self.first_us
        if not first:
            modules = self.modules_us
            if self.draft is not None:
                served = BackendRelease(row.engine, row.engine_version or None)
                grid = np.array([float(positions)])
                taken = self.draft.served_us(grid, served, constants, decoder)
                modules += float(taken[0])
        prompts = self.prompts.us(constants, **step) if self.prompts else 0.0
        return float(modules + between[0] + host + prompts)


def timed_steps(
    rows: Sequence[WholeRow], config: Config, answerer: Answerer, models: Path | None = None
) -> list[TimedStep]:
    """Return T of every row's modules, or the reason why it is not known.

    The query names the row's own release; if its rules are not on record or do not answer, the
    nearest release that answers. `models` is the folder with the rows' models, MODEL/config.json of
    each; the project's own if None.
    """
    deployments = _RowDeployments(config, models)
    timed: dict[int, TimedStep] = {}
    pending = []
    for place, row in enumerate(rows):
        releases, refusal = deployments.releases(row)
        if refusal:
            timed[place] = TimedStep(row, refusal=refusal)
        else:
            pending.append((place, row, releases))
    while pending:
        attempts = [
            (place, row, releases, deployments(row, releases[0]))
            for place, row, releases in pending
        ]
        module_times = iter(_modules_us(deployments, attempts, answerer))
        pending = []
        for place, row, releases, deployment in attempts:
            times = deployment if isinstance(deployment, str) else next(module_times)
            if not isinstance(times, str) and isinstance(deployment, Deployment):
                timed[place] = TimedStep(row, None, deployment, releases[0], *times)
            elif len(releases) > 1:
                pending.append((place, row, releases[1:]))
            else:
                timed[place] = TimedStep(row, refusal=str(times))
    steps = [timed[place] for place in range(len(rows))]
    served = {
        place: (step.row, step.deployment)
        for place, step in enumerate(steps)
        if step.deployment and step.row.holds_prefill
    }
    prompts = dict(zip(served, prompts_of([*served.values()], answerer), strict=True))
    return [
        step._replace(
            prompts=prompts.get(place), sums=step.deployment.sums if step.deployment else 0
        )
        for place, step in enumerate(steps)
    ]


_Attempt = tuple[int, WholeRow, list[str], Deployment | str]


_ModuleTimes = tuple[float, float, Drafted | None]


def _modules_us(
    deployments: "_RowDeployments", attempts: Sequence[_Attempt], answerer: Answerer
) -> list[_ModuleTimes | str]:
    """Return T of each deployment's modules at its row's N and at 1, and the draft that T contains.

    A refused deployment has its reason instead.
    """
    served = [
        (row, deployment)
        for _, row, _, deployment in attempts
        if isinstance(deployment, Deployment)
    ]
    if not served:
        return []
    grid = sorted({1} | {row.positions for row, _ in served})
    forward = total(Questions([deployment for _, deployment in served], grid), answerer)
    drafts = _drafts(deployments, served, grid, answerer)
    times = list[_ModuleTimes | str]()
    for place, (row, _) in enumerate(served):
        draft, refusal = drafts.get(place), forward.refusals[place]
        if isinstance(draft, str) or refusal:
            times.append(refusal or str(draft))
            continue
        modules = forward.latency_us[place, : -len(ROLES)].sum(axis=0)
        times.append((float(modules[grid.index(row.positions)]), float(modules[0]), draft))
    return times


def _drafts(
    deployments: "_RowDeployments",
    served: Sequence[tuple[WholeRow, Deployment]],
    grid: Sequence[int],
    answerer: Answerer,
) -> dict[int, Drafted | str]:  # fmt: skip
    """Return the draft that a row's T contains at its N, or the reason of its refusal, by place.

    The drafter is the head that the row names, else the model's own layer.
    """
    drafts: dict[int, Drafted | str] = {}
    answerable: dict[int, Deployment] = {}
    for place, (row, deployment) in enumerate(served):
        if row.holds_draft and row.positions > 1:
            drafter = deployments.head(row, deployment) if row.head else as_own(deployment)
            if isinstance(drafter, str):
                drafts[place] = drafter
            else:
                answerable[place] = drafter
    if not answerable:
        return drafts
    forward = total(Questions([*answerable.values()], grid), answerer)
    for index, (place, drafter) in enumerate(answerable.items()):
        row, refusal = served[place][0], forward.refusals[index]
        if refusal:
            drafts[place] = refusal
            continue
        engine = BackendRelease(row.engine, row.engine_version or None)
        draft = draft_of(drafter, forward, index, engine)
        drafts[place] = draft.at(grid.index(row.positions))
    return drafts


class _RowDeployments:
    """Deployments of rows; each model file and each combination of settings is read once."""

    def __init__(self, config: Config, models: Path | None) -> None:
        self._config, self._models = config, models
        self._asked = cache(self._ask)
        self._read = cache(lambda path: find_model_file(config.folder, str(path)))

    def releases(self, row: WholeRow) -> tuple[list[str], str | None]:
        """Return the releases to query, the nearest first, or the reason why there are none."""
        if row.engine not in _PACKAGES:
            return [], f"no kernels of {row.engine} on a GPU are known"
        if row.holds_draft and row.holds_prefill:
            return [], "T is of a token, and how many a step with drafts gave is not published"
        package = _PACKAGES[row.engine]
        versions = versions_of(self._config, package) or [_ASSUMED_RELEASE[row.engine]]
        return [f"{package}=={version}" for version in _nearest(row.engine_version, versions)], None

    def __call__(self, row: WholeRow, release: str) -> Deployment | str:
        """Return the deployment of a row, or the reason why there is none."""
        key = structs.replace(row, batch=1, context=1, positions=1, t_us=1.0, **_IGNORED_FIELDS)
        deployment = _or_reason(partial(self._asked, key, release))
        if isinstance(deployment, str):
            return deployment
        return structs.replace(deployment, batch=row.batch, context=row.context)

    def head(self, row: WholeRow, deployment: Deployment) -> Deployment | str:
        """Return the deployment of the head that drafts for a row's model, or a refusal."""
        return _or_reason(partial(self._ask_head, row, deployment))

    def _ask_head(self, row: WholeRow, deployment: Deployment) -> Deployment:
        path = self._file(row.head, row.head, HEADS)
        spec = DeploymentSpec(
            models=(str(path),), platforms=(deployment.platform,), batch=(row.batch,),
            context=(row.context,), tp=row.tp, dp=row.dp,
        )  # fmt: skip
        return as_head(expanded(self._config, spec, drafters=True)[0], deployment)

    def _ask(self, row: WholeRow, release: str) -> Deployment:
        path = self._file(row.model, row.config)
        platform = self._platform(row.gpu)
        formats = formats_of(row.precision, self._read(path))
        cache_format = self._cache(row, platform, formats)
        spec = DeploymentSpec(
            models=(str(path),), platforms=(platform,), attention=_attention(row), moe=(release,),
            routing=(ROUTING,), moe_backend=row.moe_backend or None,
            tp=row.tp, ep=row.ep, dp=row.dp, **formats, **cache_format,
        )  # fmt: skip
        answerable, refused = expand(self._config, spec, any_class=True)
        if refused:
            raise RefusedError(list(refused[0].refusals))
        return as_published(answerable[0], row.precision)

    def _cache(self, row: WholeRow, platform: str, formats: Mapping[str, Any]) -> dict[str, Any]:
        """Return the format of the cache, empty for the model file's own.

        Where a source does not state it, quantised models are assumed to have an 8-bit cache from
        compute capability 10.0 on, as in the recipes of InferenceX: SemiAnalysisAI/InferenceX,
        benchmarks/gptoss_fp4_b200.sh, gptoss_fp4_b200_trt.sh and dsr1_fp4_b200.sh. The column
        `served` of the project's rows names such a recipe where it is the row's own.
        """
        kv_dtype = row.kv_dtype.lower()
        sm = self._config.platforms[platform].sm or 0
        low_bit = any(value not in PLAIN for value in formats.values()) or "4" in row.precision
        assumed_float8 = (
            kv_dtype == "unknown" and sm >= _BLACKWELL_SM and (low_bit or row.precision == "fp8")
        )
        return {"kv_dtype": "float8"} if assumed_float8 or kv_dtype.startswith("fp8") else {}

    def _file(self, model: str, config: str, folder: str = MODELS) -> Path:
        if self._models is not None:
            path = self._models / model / "config.json"
        else:
            path = self._config.folder / folder / f"{config}.json"
        if not path.is_file():
            place = "no file is named" if self._models is None and not config else f"no {path}"
            raise ConfigError(
                f"{place} for {model}", remedy="Give --models FOLDER with MODEL/config.json"
            )
        return path

    def _platform(self, gpu: str) -> str:
        """Return the platform of a GPU as sources write it; refuse a GPU with a lowered limit."""
        name, _, qualifier = gpu.partition("(")
        if re.search(r"(?i)\bcap|\blimit|\bW\b", qualifier):
            raise ConfigError(
                f"{gpu} does not run as its datasheet says", remedy="Add it to platforms.yaml"
            )
        return resolve(self._config.platforms, platform_name(name))


def _or_reason(build: Callable[[], Deployment]) -> Deployment | str:
    """Return the deployment that `build` makes, or the reason why it cannot."""
    try:
        return build()
    except RefusedError as error:
        return "; ".join(refusal.reason for refusal in error.refusals)
    except NearfreeError as error:
        return error.what


def platform_name(gpu: str) -> str:
    """Return a GPU's name as platforms write it: lower case, other characters as underscores."""
    return re.sub(r"[^a-z0-9]+", "_", gpu.partition("(")[0].strip().lower())


def _nearest(version: str, versions: Sequence[str]) -> list[str]:
    """Return releases by nearness: the newest not newer than `version`, the newer ones, the older.

    If `version` is no version number, return the newest first.
    """
    ordered = sorted(versions, key=Version)
    try:
        target = Version(version)
    except InvalidVersion:
        return ordered[::-1]
    older = [candidate for candidate in ordered if Version(candidate) <= target][::-1]
    newer = [candidate for candidate in ordered if Version(candidate) > target]
    return [*older[:1], *newer, *older[1:]]


def _attention(row: WholeRow) -> tuple[str, ...]:
    """Return the attention that a row names, empty where the engine chose it.

    Raises ConfigError if no T(N) of the named kernel is known.
    """
    if not row.attention_backend:
        return ()
    kernel = _ATTENTION.get((row.engine, row.attention_backend))
    if kernel is None:
        raise ConfigError(
            f"no T(N) is known of the attention that {row.attention_backend} names to {row.engine}",
            remedy="Leave attention_backend empty where it is the engine's own choice",
        )
    return (kernel,)
