"""Questions to the predictors, the facts of all datasheets, and the rules of this repository."""

from pathlib import Path
from typing import Any

import polars as pl
from nearfree.config.files import Config
from nearfree.core.setting import Setting
from nearfree.derive.granularity.facts import datasheet_facts
from nearfree.derive.granularity.resolve import Resolver
from nearfree.derive.laws.laws import answer_laws
from nearfree.derive.tables.columns import SETTING_COLUMNS
from nearfree.derive.tables.settings import setting_row
from nearfree.log.names import Layout

ROOT = Path(__file__).parents[2]
FACTS = datasheet_facts(Config(ROOT / "config").platforms)
LOG = Layout(ROOT / "results")
RESOLVER = Resolver(LOG)
DENSE = {"module": "dense_ffn", "backend": "torch", "d_model": 4096, "d_ff": 9216}
MOE = {
    "module": "moe_ffn", "backend": "vllm", "d_model": 4096, "d_ff": 512,
    "experts": 256, "top_k": 8, "routing": "balanced",
}  # fmt: skip
ATTENTION = {
    "module": "attention", "backend": "flash_attn_2",
    "context": 1024, "heads": 32, "kv_heads": 32, "head_dim": 128,
}  # fmt: skip
_COLUMNS = {
    "asked": pl.Int64,
    "platform": pl.String,
    **{name: column.dtype for name, column in SETTING_COLUMNS.items()},
    "backend_version": pl.String,
    "kernel": pl.String,
    "nodes": pl.Int64,
    "fewest": pl.Int64,
    "baseline": pl.Int64,
    "grid": pl.List(pl.Int64),
}
_BESIDE = {
    "platform": "h20", "backend_version": "0.9.1", "kernel": None, "nodes": None, "fewest": None,
    "baseline": None,
}  # fmt: skip


def ask(*questions: dict[str, Any]) -> pl.DataFrame:
    """Return questions as a frame; each is a setting's fields and what stands beside them."""
    rows = []
    for key, question in enumerate(questions):
        fields = {"dtype": "bfloat16", **question}
        beside = {name: fields.pop(name, given) for name, given in _BESIDE.items()}
        setting = Setting(**fields)
        saturation = -(-(setting.experts or 1) // (setting.batch * (setting.top_k or 1)))
        baseline = beside["baseline"] or (saturation if setting.routing == "balanced" else 1)
        grid = [baseline * 2**step for step in range(8)]
        rows.append(
            {"asked": key, **setting_row(setting), **beside, "baseline": baseline, "grid": grid}
        )
    frame = pl.DataFrame(rows, schema=_COLUMNS)
    unsaid = (name for name in ("nodes", "fewest") if frame[name].is_null().all())
    return frame.drop(unsaid)


def answers(*questions: dict[str, Any]) -> list[dict[str, dict[str, Any]]]:
    """Return what each law says of each question at one tolerance, by the law's name."""
    frame = answer_laws(ask(*questions), FACTS, [0.2], RESOLVER)
    return [
        {row["predictor"]: row for row in frame.filter(asked=key).to_dicts()}
        for key in range(len(questions))
    ]


def answer(predictor: str, **question: Any) -> dict[str, Any]:
    """Return what one law says of one question."""
    return answers(question)[0][predictor]
