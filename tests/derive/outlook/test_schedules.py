"""Schedules of deployments: a row an engine that can serve them, whatever else is asked."""

import json
from pathlib import Path

import polars as pl
import pytest
from msgspec.structs import replace
from nearfree.config.files import Config, DeploymentSpec
from nearfree.derive.outlook import schedules as module
from nearfree.derive.outlook.schedules import SCHEDULES, schedules
from nearfree.derive.predict.answers import Answerer
from nearfree.derive.predict.forecast.deployment import Questions
from nearfree.derive.predict.forecast.total import Total, total

from derive.sheeted import ANSWERER, CONFIG, sheet_table

pytestmark = pytest.mark.slow

DENSE = DeploymentSpec(models=("qwen3_8b",), platforms=("h20", "b200"), context=(1024, 4096))
SPARSE = DeploymentSpec(models=("mixtral_8x7b",), platforms=("h200",), moe=("vllm==0.20.2",))


class Given(Config):
    """The shipped config with deployments of its own."""

    def __init__(self, folder: Path, **entries: DeploymentSpec) -> None:
        super().__init__(folder)
        self.__dict__["deployments"] = entries


def rows(**entries: DeploymentSpec) -> pl.DataFrame:
    """Return the rows of some deployments, checked as they are when they are written."""
    table = schedules(Given(CONFIG.folder, **entries), ANSWERER, sheet_table())
    return SCHEDULES.build(table, table["from_ids"].explode().drop_nulls().unique().to_list())


def test_a_dense_model_has_a_row_an_engine() -> None:
    """Each platform, context and tolerance has one of each engine, made from facts and events."""
    table_rows = rows(a=DENSE)
    assert table_rows.height == 2 * 2 * 2 * len(CONFIG.site.tolerances)
    assert set(table_rows["engine"]) == {"vllm", "sglang"}
    kinds = table_rows["from_ids"].list.eval(pl.element().str.split(":").list.first())
    assert all({"platforms", "config/models"} < set(kind) for kind in kinds)


def test_experts_are_the_engine_s_own() -> None:
    """Experts of one engine make rows of that engine, those of no engine make none."""
    assert set(rows(a=SPARSE)["engine"]) == {"vllm"}
    assert set(rows(a=replace(SPARSE, moe=("sglang==0.5.9",)))["engine"]) == {"sglang"}
    assert rows(a=replace(SPARSE, moe=("torch-padded",))).is_empty()


def test_what_does_not_fit_is_a_row_without_an_option() -> None:
    """It says why, what it takes and what would hold it; elsewhere the option ends with memory."""
    (row, *_) = rows(a=replace(SPARSE, platforms=("h100",))).to_dicts()
    assert (row["fits"], row["option"]) == (False, None)
    assert row["refusal"] == "does not fit in memory"
    assert row["gpus_needed"] == 2
    assert row["peak_bytes"] > row["capacity_bytes"] == 80_000_000_000
    for row in rows(a=replace(DENSE, platforms=("l40s",))).to_dicts():
        assert row["fits"]
        assert 1 < row["largest_batch"] < 256
        last = json.loads(row["option"])
        if row["engine"] == "vllm":
            assert last["num_speculative_tokens_per_batch_size"][-1][1] == row["largest_batch"]


def test_formats_that_an_entry_asks_for_are_said() -> None:
    """They are in the row, and as the command's options; what is stored in them is smaller."""
    plain, small = (rows(a=spec) for spec in (DENSE, replace(DENSE, kv_dtype="float8")))
    assert set(plain["asked"]) == {None}
    assert set(small["asked"]) == {"--kv-dtype float8"}
    assert set(small["kv_dtype"]) == {"float8"}
    assert (small["kv_bytes"] * 2 == plain["kv_bytes"]).all()
    assert (small["weights_bytes"] == plain["weights_bytes"]).all()


def test_kernels_that_an_entry_names_are_said() -> None:
    """They are among the command's options, so that it prints the option that the row has."""
    named = replace(SPARSE, moe=("vllm==0.33.0",), moe_backend="triton", dense="torch")
    assert set(rows(a=named)["asked"]) == {"--dense torch --moe-backend triton"}


def test_what_memory_does_not_hold_refuses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch size whose T(N) is not known takes no schedule away from those below it."""
    spec = replace(DENSE, platforms=("l40s",), context=(4096,))
    known = rows(a=spec)
    last = known["largest_batch"][0]

    def refused(questions: Questions, answerer: Answerer) -> Total:
        total_us = total(questions, answerer)
        why = [
            "unknown" if deployment.batch > last else reason
            for deployment, reason in zip(questions.deployments, total_us.refusals, strict=True)
        ]
        return replace(total_us, refusals=why)

    monkeypatch.setattr(module, "total", refused)
    assert known["option"].null_count() == 0
    assert rows(a=spec).equals(known)


def test_a_refusal_is_a_row() -> None:
    """Where T(N) is not known, the row says why, and nothing else is there."""
    table_rows = rows(a=replace(DENSE, platforms=("b200",), attention=("xformers==0.0.34",)))
    assert table_rows["option"].null_count() == table_rows.height > 0
    assert set(table_rows["refusal"]) == {
        "attention: flash_attn_3 has no kernels for compute capability 100: ask without --attention"
    }


def test_engines_drop_schedules_of_several_groups() -> None:
    """Under data parallelism a row says so in the place of an option."""
    spread = replace(DENSE, platforms=("h200",), context=(1024,), tp=2, dp=2)
    table_rows = rows(a=spread)
    assert table_rows["option"].null_count() == table_rows.height > 0
    assert set(table_rows["refusal"]) == {
        f"{engine} drops a schedule under data parallelism, and 2 groups are asked about"
        for engine in ("vllm", "sglang")
    }


def test_no_deployment_no_row() -> None:
    """Without deployments the table is empty, with all its columns."""
    assert rows().columns == list(SCHEDULES.columns)


@pytest.mark.parametrize("at_once", [1, 3])
def test_parts_make_the_whole(monkeypatch: pytest.MonkeyPatch, at_once: int) -> None:
    """However many conditions are answered at once, the rows are the same."""
    table_rows = rows(a=DENSE, b=SPARSE)
    monkeypatch.setattr(module, "_DEPLOYMENTS_AT_ONCE", at_once)
    assert rows(a=DENSE, b=SPARSE).equals(table_rows)
