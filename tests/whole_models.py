"""Small models and studies of them, as a config folder gives them, and curves of their modules."""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec
import yaml
from conftest import make_latency, write_take
from decoders.files import change, write
from derive.tables.logs import copy_config
from nearfree.config.files import Config
from nearfree.core.modules.model import ModelStudy
from nearfree.core.modules.registry import STUDIES
from nearfree.core.plan import MeasurePlan, Plan
from nearfree.core.setting import Setting
from nearfree.core.work import ExecutedWork
from nearfree.decoders.model import Model, read_model
from nearfree.decoders.ranks.modules import ModuleUse
from nearfree.log.events import LatencyMeasured, Payload, WorkCounted
from nearfree.log.names import Layout
from nearfree.log.seal import Seal
from nearfree.log.take import OpenTake

_FORWARD: dict[str, Any] = {
    "hidden_act": "silu", "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "num_hidden_layers": 3,
    "vocab_size": 97, "max_position_embeddings": 128,
}  # fmt: skip
_OWN: dict[str, dict[str, Any]] = {
    "qwen3": {},
    "llama": {},
    "granite": {},
    "mistral": {},
    "qwen3_moe": {"norm_topk_prob": True},
    "bailing_moe_v2": {
        "head_dim": 16, "partial_rotary_factor": 0.5, "use_qk_norm": True, "use_qkv_bias": False,
        "use_bias": False, "score_function": "sigmoid", "moe_router_enable_expert_bias": True,
        "norm_topk_prob": True, "routed_scaling_factor": 2.5, "n_group": 4, "topk_group": 2,
    },
}  # fmt: skip
_STUDY: dict[str, Any] = {
    "module": "model", "model": "small", "backend": "torch_sdpa", "platforms": ["cpu"],
    "context": [40], "positions": [1, 2, 4, 8], "dtype": "float32",
    "protocol": {"name": "interleaved", "rounds": 3, "warmup": 0, "forwards": 1},
    "apart": {"name": "interleaved", "rounds": 3, "warmup": 0, "forwards": 1},
}  # fmt: skip
_EXPERTS: dict[str, Any] = {"moe": "torch_padded", "routing": ["balanced", "skewed"]}
DENSE, MOE, LING = "qwen3", "qwen3_moe", "bailing_moe_v2"
"""Model types: without experts; with 16, k = 4, in each of three layers; and with 16 in four
groups, of which two are kept, from the second layer on, beside shared ones."""


def config(kind: str = DENSE, **changes: Any) -> dict[str, Any]:
    """Return the config.json of a small model that has a forward; keys set to ... are gone."""
    return change(kind, **(_FORWARD | _OWN[kind] | changes))


def write_model(folder: Path, document: object, name: str = "small") -> None:
    """Put a model into the models/ of a config folder."""
    (folder / "models").mkdir(parents=True, exist_ok=True)
    write(folder / "models", document, f"{name}.json")


def write_config(folder: Path, *kinds: str, **studies: dict[str, Any]) -> Config:
    """Return a copy of the shipped config with these studies alone, and small models of types."""
    config_folder = copy_config(folder / "config")
    (config_folder / "studies.yaml").write_text(yaml.safe_dump(studies, sort_keys=False))
    for kind in kinds or (DENSE,):
        write_model(config_folder, config(kind), "small" if kind == DENSE else kind)
    return Config(config_folder)


def as_model(document: object) -> Model:
    """Return the model `small` of a config.json."""
    with TemporaryDirectory() as folder:
        write_model(Path(folder), document)
        return read_model(Path(folder), "small")


def small(kind: str = DENSE, **changes: Any) -> Model:
    """Return a small model of a type."""
    return as_model(config(kind, **changes))


def study_document(kind: str = DENSE, **changes: Any) -> dict[str, Any]:
    """Return a study of a small model as studies.yaml holds it; keys set to ... are gone."""
    every = _STUDY | ({} if kind in (DENSE, "llama", "mistral") else _EXPERTS) | changes
    return {key: value for key, value in every.items() if value is not ...}


def model_study(kind: str = DENSE, **changes: Any) -> ModelStudy:
    """Return a study of a small model."""
    study: ModelStudy = msgspec.convert(study_document(kind, **changes), STUDIES)
    return study


def plan_of(model: Model, sweeps: Any, **changes: Any) -> MeasurePlan:
    """Return the plan of a model's own take."""
    given = {"protocol": model_study().protocol, "environment": "cpu"} | changes
    return MeasurePlan(sweeps=sweeps, models={"small": model.plain}, **given)


def curve(
    setting: Setting, times: Mapping[int, Iterable[float]], baseline: int = 1
) -> list[LatencyMeasured]:
    """Return the visits of a setting: exact times in microseconds, by N and round."""
    return [
        make_latency(
            number, n, setting=setting, baseline=baseline, wall_us=(us,), process_us=(us,),
            dirty=(False,),
        )
        for n, rounds in times.items()
        for number, us in enumerate(rounds)
    ]  # fmt: skip


def counted(setting: Setting, block_rows: Mapping[int, int | None]) -> list[WorkCounted]:
    """Return what a module's run counted: the rows of a block at each N."""
    return [
        WorkCounted(
            setting=setting,
            n=n,
            work=ExecutedWork(
                flop_logical=1, flop_executed=1, bytes_compulsory=1, block_rows=rows, basis="given"
            ),
            kernels=("given",),
        )
        for n, rows in block_rows.items()
    ]


def curves_of(
    uses: Iterable[ModuleUse],
    us: Callable[[str, int], float],
    positions: Iterable[int],
    *,
    rounds: int = 3,
    baseline: int = 1,
) -> list[LatencyMeasured]:
    """Return the visits of modules whose T(N) a function gives by role; later rounds are slower."""
    return [
        visit
        for use in uses
        for visit in curve(
            use.setting,
            {n: [us(use.role, n) * (1 + number / 100) for number in range(rounds)]
             for n in positions},
            baseline,
        )
    ]  # fmt: skip


def write_events(
    layout: Layout, stream: str, plan: Plan, payloads: Iterable[Payload], take: int = 1
) -> Seal:
    """Seal a take of the platform cpu with what it says, now."""

    def work(open_take: OpenTake) -> None:
        for payload in payloads:
            open_take.append(payload, sync=False)
        open_take.sync()

    return write_take(layout, stream=stream, take=take, plan=plan, work=work)
