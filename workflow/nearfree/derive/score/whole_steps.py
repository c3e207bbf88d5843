"""Published steps of whole models as deployments, and T of each: what `predict` would have said."""

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
from nearfree.core.precision import PLAIN, Dtype, Product
from nearfree.decoders.attention_kinds import Latent
from nearfree.decoders.engines import SGLANG, VLLM
from nearfree.decoders.model_file import ModelFile, find_model_file
from nearfree.decoders.modules import requests
from nearfree.derive.engine_step.form import StepConstants, between_us, host_us
from nearfree.derive.predict.answers import Answerer
from nearfree.derive.predict.forecast.deployment import Deployment, Questions
from nearfree.derive.predict.forecast.draft import Drafted, as_head, as_own, draft_of
from nearfree.derive.predict.forecast.expand_deployments import asked_about
from nearfree.derive.predict.forecast.expand_deployments import deployments as expanded
from nearfree.derive.predict.forecast.step import ROLES
from nearfree.derive.predict.forecast.total import total
from nearfree.derive.score.prompts import Prompts, prompts_of
from nearfree.errors import ConfigError, NearfreeError, RefusedError
from nearfree.hardware.platforms import resolve
from nearfree.public.whole_models import HEADS, MODELS, WholeRow

ROUTING = "power_law:1.01"
"""How tokens are taken to fall on experts where real ones were served. Balanced loads, this law and
one of 1.2 were tried with all rows of the project in view; this one missed least."""
_PACKAGES = {**{each.name: each.name for each in (VLLM, SGLANG)}, "trtllm": "tensorrt-llm"}
"""The package of each engine that a row may name."""
_ASSUMED = {"trtllm": "1.2.0"}
"""The release that is asked where no rules of any are read."""
_ATTENTION: dict[tuple[str, str], str] = {(SGLANG.name, "flashinfer"): "flashinfer"}
"""What runs attention where an engine's option names it, by engine and word: what `--attention`
takes."""
_OWN = {"line": 0, "ratio": None, "isl": None, "osl": None, "how": "", "source": "", "draft": ""}
"""What differs between rows that ask alike."""
_BLACKWELL = 100
_BLOCKS = {
    "deepseek_v3", "deepseek_v32", "kimi_k2", "glm_moe_dsa", "minimax_m2",
    "qwen3_moe", "qwen3_next", "qwen3_5_moe_text",
}  # fmt: skip
"""Kinds of models whose FP8 checkpoints share a scale in blocks of 128 x 128."""


class Timed(NamedTuple):
    """A row with what `predict` says of it, or why it says nothing.

    `modules_us` is T of its modules at N and `first_us` at one position, `draft` what a draft that
    T holds takes, `prompts` what its steps read of others' prompts; 0 and None where there is a
    refusal. `deployment` is what was asked, of the release `asked`.
    """

    row: WholeRow
    refusal: str | None = None
    deployment: Deployment | None = None
    asked: str = ""
    modules_us: float = 0.0
    first_us: float = 0.0
    draft: Drafted | None = None
    prompts: Prompts | None = None

    def predicted_us(
        self, constants: StepConstants, bandwidth_gb_s: float, *, first: bool = False
    ) -> float:
        """Return T of the step by the constants of an engine, in microseconds.

        Parameters
        ----------
        first
            Whether T(1) is meant, in the place of T(N).
        """
        if self.deployment is None:
            return float("nan")
        decoder, row = self.deployment.decoder, self.row
        positions = 1 if first else row.positions
        tokens = np.array([requests(row.batch, self.deployment.parallel.dp) * positions])
        step: dict[str, Any] = {
            "layers": decoder.pairs, "d_model": decoder.d_model, "bandwidth_gb_s": bandwidth_gb_s,
        }  # fmt: skip
        between = between_us(constants, tokens=tokens.astype(np.float64), **step)
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
) -> list[Timed]:
    """Return T of every row's modules, or why it is not known.

    A row is asked of its own release; where the rules of that are not on record, or say nothing of
    it, of the nearest one that answers.

    Parameters
    ----------
    models
        The folder with the rows' models, MODEL/config.json of each; the project's own if None.
    """
    ask = _Asker(config, models)
    open_ = [(place, row, *ask.releases(row)) for place, row in enumerate(rows)]
    found = {place: Timed(row, refusal=why) for place, row, _, why in open_ if why}
    waiting = [(place, row, list(left)) for place, row, left, why in open_ if not why]
    while waiting:
        asked = [(place, row, left, ask(row, left[0])) for place, row, left in waiting]
        answered = iter(_modules_us(ask, asked, answerer))
        waiting = []
        for place, row, left, each in asked:
            said = each if isinstance(each, str) else next(answered)
            if not isinstance(said, str) and isinstance(each, Deployment):
                found[place] = Timed(row, None, each, left[0], *said)
            elif len(left) > 1:
                waiting.append((place, row, left[1:]))
            else:
                found[place] = Timed(row, refusal=str(said))
    steps = [found[place] for place in range(len(rows))]
    served = [(each.row, each.deployment) for each in steps if each.deployment]
    prompts = iter(prompts_of(served, answerer))
    return [each._replace(prompts=next(prompts)) if each.deployment else each for each in steps]


_Open = tuple[int, WholeRow, list[str], Deployment | str]


_Said = tuple[float, float, Drafted | None]


def _modules_us(ask: "_Asker", asked: Sequence[_Open], answerer: Answerer) -> list[_Said | str]:
    """Return T of each deployment's modules at its row's N and at 1, and of a draft that it holds.

    Or, of one, why it is not known.
    """
    served = [(row, each) for _, row, _, each in asked if isinstance(each, Deployment)]
    if not served:
        return []
    grid = sorted({1} | {row.positions for row, _ in served})
    found = total(Questions([each for _, each in served], grid), answerer)
    drafts = _drafts(ask, served, grid, answerer)
    said = list[_Said | str]()
    for place, (row, _) in enumerate(served):
        draft, refusal = drafts.get(place), found.refusals[place]
        if isinstance(draft, str) or refusal:
            said.append(refusal or str(draft))
            continue
        modules = found.latency_us[place, : -len(ROLES)].sum(axis=0)
        said.append((float(modules[grid.index(row.positions)]), float(modules[0]), draft))
    return said


def _drafts(
    ask: "_Asker", served: Sequence[tuple[WholeRow, Deployment]], grid: Sequence[int],
    answerer: Answerer,
) -> dict[int, Drafted | str]:  # fmt: skip
    """Return what the drafts that rows hold take at their N, or why that is not known, by place.

    They are those of the head that a row names, else of the model's own layer.
    """
    asked = {
        place: ask.head(row, each) if row.head else as_own(each)
        for place, (row, each) in enumerate(served)
        if row.holds_draft and row.positions > 1
    }
    drafts: dict[int, Drafted | str] = {p: e for p, e in asked.items() if isinstance(e, str)}
    known = {place: each for place, each in asked.items() if isinstance(each, Deployment)}
    if not known:
        return drafts
    found = total(Questions([*known.values()], grid), answerer)
    for at, (place, each) in enumerate(known.items()):
        row, refusal = served[place][0], found.refusals[at]
        engine = BackendRelease(row.engine, row.engine_version or None)
        drafts[place] = refusal or draft_of(each, found, at, engine).at(grid.index(row.positions))
    return drafts


class _Asker:
    """Rows as deployments: one reading of each model, platform and spread."""

    def __init__(self, config: Config, models: Path | None) -> None:
        self._config, self._models = config, models
        self._asked = cache(self._ask)
        self._read = cache(lambda path: find_model_file(config.folder, str(path)))

    def releases(self, row: WholeRow) -> tuple[list[str], str | None]:
        """Return the releases to be asked, the nearest first, or why there are none."""
        if row.engine not in _PACKAGES:
            reason = f"no kernels of {row.engine} on a GPU are known"
            return [], reason
        if row.holds_draft and row.holds_prefill:
            return [], "T is of a token, and how many a step with drafts gave is not published"
        package = _PACKAGES[row.engine]
        known = [
            version
            for name, version in (each.split("==") for each in self._config.releases)
            if name == package
        ] or [_ASSUMED[row.engine]]
        return [f"{package}=={version}" for version in _nearest(row.engine_version, known)], None

    def __call__(self, row: WholeRow, release: str) -> Deployment | str:
        """Return the deployment of a row, or why there is none."""
        alike = structs.replace(row, batch=1, context=1, positions=1, t_us=1.0, **_OWN)
        found = _or_reason(partial(self._asked, alike, release))
        if isinstance(found, str):
            return found
        return structs.replace(found, batch=row.batch, context=row.context)

    def head(self, row: WholeRow, deployment: Deployment) -> Deployment | str:
        """Return the deployment of the head that drafts for a row's, or why there is none."""
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
        formats = _formats(row.precision, self._read(path))
        cached = self._cache(row, platform, formats)
        spec = DeploymentSpec(
            models=(str(path),), platforms=(platform,), attention=_attention(row), moe=(release,),
            routing=(ROUTING,), moe_backend=row.moe_backend or None,
            tp=row.tp, ep=row.ep, dp=row.dp, **formats, **cached,
        )  # fmt: skip
        answerable, others = asked_about(self._config, spec, any_class=True)
        if others:
            raise RefusedError(list(others[0].refusals))
        return _as_published(answerable[0], row.precision)

    def _cache(self, row: WholeRow, platform: str, formats: Mapping[str, Any]) -> dict[str, Any]:
        """Return the format of the cache, nothing for the model file's own.

        Where a source does not say it, quantised models are taken to be served over a cache in 8
        bits from compute capability 10.0 on, as the recipes of InferenceX do: SemiAnalysisAI/
        InferenceX, benchmarks/gptoss_fp4_b200.sh, gptoss_fp4_b200_trt.sh and dsr1_fp4_b200.sh.
        The column `served` of the project's rows names such a recipe where it is the row's own.
        """
        said = row.kv_dtype.lower()
        sm = self._config.platforms[platform].sm or 0
        few = any(each not in PLAIN for each in formats.values()) or "4" in row.precision
        unsaid = said == "unknown" and sm >= _BLACKWELL and (few or row.precision == "fp8")
        return {"kv_dtype": "float8"} if unsaid or said.startswith("fp8") else {}

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
        """Return the platform of a GPU as sources write it; one that is throttled is another."""
        name, _, beside = gpu.partition("(")
        if re.search(r"(?i)\bcap|\blimit|\bW\b", beside):
            raise ConfigError(
                f"{gpu} does not run as its datasheet says", remedy="Add it to platforms.yaml"
            )
        return resolve(self._config.platforms, device(name))


def _or_reason(ask: Callable[[], Deployment]) -> Deployment | str:
    """Return what is asked for, or why there is none."""
    try:
        return ask()
    except RefusedError as error:
        return "; ".join(each.reason for each in error.refusals)
    except NearfreeError as error:
        return error.what


def device(gpu: str) -> str:
    """Return a GPU's name as platforms write it: lower case, what is no letter an underscore."""
    return re.sub(r"[^a-z0-9]+", "_", gpu.partition("(")[0].strip().lower())


def _nearest(version: str, known: Sequence[str]) -> list[str]:
    """Return releases: the newest that is not newer than a version, the newer ones, the older.

    The newest first where it is no version.
    """
    ordered = sorted(known, key=Version)
    try:
        own = Version(version)
    except InvalidVersion:
        return ordered[::-1]
    older = [each for each in ordered if Version(each) <= own][::-1]
    newer = [each for each in ordered if Version(each) > own]
    return [*older[:1], *newer, *older[1:]]


def _attention(row: WholeRow) -> tuple[str, ...]:
    """Return what runs a row's attention, nothing where the engine chose.

    Raises
    ------
    ConfigError
        The row names a kernel of which no T(N) is known.
    """
    if not row.attention_backend:
        return ()
    named = _ATTENTION.get((row.engine, row.attention_backend))
    if named is None:
        raise ConfigError(
            f"no T(N) is known of the attention that {row.attention_backend} names to {row.engine}",
            remedy="Leave attention_backend empty where it is the engine's own choice",
        )
    return (named,)


def _formats(precision: str, file: ModelFile) -> dict[str, Any]:
    """Return what a row's precision asks for instead of what a model's file says.

    Raises
    ------
    ConfigError
        It names no format that is known.
    """
    word = re.sub(r"[?\s].*", "", precision.strip().lower())
    stored = file.precision.said(file.main)["weights"] if file.precision else None
    if word not in _STORED:
        raise ConfigError(
            f"in what formats {precision!r:.60} stores and computes is not known",
            remedy=f"Write {', '.join(_STORED)}",
        )
    if stored in _STORED[word]:
        return {}
    if word in ("bf16", "bfloat16"):
        return {"dtype": "bfloat16"}
    wanted = _STORED[word][-1]
    if word == "fp8" and file.decoder and file.decoder.model_type in _BLOCKS:
        wanted = "float8_block"
    return {"weights": wanted} | ({} if wanted in _UNPACKED else {"activations": wanted})


_STORED: dict[str, tuple[Dtype, ...]] = {
    **dict.fromkeys(("bf16", "bfloat16"), ("bfloat16",)),
    "fp8": ("float8_block", "float8"),
    **dict.fromkeys(("fp4", "nvfp4"), ("mxfp4", "nvfp4")),
    "mxfp4": ("mxfp4",),
    **dict.fromkeys(("int4", "awq-int4", "gptq-int4"), ("int4",)),
    "mxfp8": ("mxfp8",),
}
"""By a source's word, what weights it may mean; the last where a file has something else."""
_UNPACKED = ("int4", "mxfp4")


def _as_published(deployment: Deployment, precision: str) -> Deployment:
    """Return a deployment with what published NVFP4 checkpoints leave as it is.

    Those of models with latent attention quantise their FFN and experts alone: the quantisation
    files of nvidia/DeepSeek-V3.1-NVFP4, nvidia/GLM-5-NVFP4 and nvidia/Kimi-K2.6-NVFP4.
    """
    own = deployment.precision
    latent = any(isinstance(kind, Latent) for kind in deployment.decoder.attention)
    if own is None or not latent or own.experts.weights != "nvfp4" or "fp4" not in precision:
        return deployment
    plain = Product(own.plain, own.plain)
    roles = tuple((role, plain) for role, _ in own.roles)
    return structs.replace(deployment, precision=structs.replace(own, attention=plain, roles=roles))
