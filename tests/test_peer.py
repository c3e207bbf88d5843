"""The peer's SDK: its protocol, and that the requested settings are not in its tables."""

import hashlib
import sys
from collections.abc import Sequence
from pathlib import Path

import polars as pl
import pytest
from derive.curves import make_curves
from nearfree.derive.reference.folds import FOLDS
from nearfree.derive.truth.truth import Truth, truth
from nearfree.errors import ConfigError
from public.tables import ROOT, SYSTEM, member, rows

from benchmarks.peer import protocol
from benchmarks.peer.compare import held_out_answers, queries, refusal_counts, score_answers
from benchmarks.peer.protocol import SCRIPT, Answer, Query, Sdk
from benchmarks.peer.tables import copy_without, fold_of, gpus_per_layer

DEPTHS = tuple(512 * step for step in range(1, 25))
TIMES = {1: 30.0, 64: 33.0, 128: 60.0}
QUERY = Query("gemm", "h100_sxm", "vllm", "0.24.0", "bfloat16", {"n": 8192, "k": 512}, (1, 64))
READS_TABLES = """
import json, sys
from pathlib import Path
import polars as pl

request = json.load(sys.stdin)
answers = []
for query in request["queries"]:
    sizes = query["sizes"]
    rows = pl.concat(map(pl.read_parquet, Path(request["systems"]).glob("data/*/gemm/*/*/*")))
    rows = rows.filter((pl.col("k") == sizes["k"]) & (pl.col("n") == sizes["n"]))
    known = dict(rows.select("m", "latency").rows())
    found = [known.get(n) for n in query["n"]]
    answers.append({"refusal": "Gone: no rows"} if None in found else {"latency_ms": found})
print(json.dumps({"answers": answers}))
"""
"""A stand-in that knows what its tables hold, and nothing else."""


def stand_in(folder: Path, text: str, timeout_s: float = 60.0) -> Sdk:
    """Return an SDK that is a script."""
    script = folder / "script.py"
    script.write_text(text)
    return Sdk(Path(sys.executable), timeout_s, script)


def saying(folder: Path, text: str) -> Sdk:
    """Return an SDK that gives the same answer to any query."""
    return stand_in(folder, f"import sys; sys.stdin.read(); print({text!r})")


def write(systems: Path, path: str, answers: Sequence[dict[str, object]]) -> None:
    """Write a table of a wheel into a folder of systems."""
    place = systems / path.removeprefix(ROOT)
    place.parent.mkdir(parents=True, exist_ok=True)
    pl.DataFrame(answers).write_parquet(place)


@pytest.fixture
def systems(tmp_path: Path) -> Path:
    """Return a folder of systems with products of many depths, experts and attention."""
    folder = tmp_path / "systems"
    points = [(n, us / 1e3) for n, us in TIMES.items()]
    products = [row for depth in DEPTHS for row in rows("gemm_perf", *points, k=depth)]
    layers = [
        row
        for number in DEPTHS
        for tp in (4, 2)
        for row in rows("moe_perf", (8, 0.6), num_experts=number, moe_tp_size=tp, inter_size=96)
    ]
    for system in ("h100_sxm", "h200_sxm"):
        write(folder, member("gemm_perf", system), products)
        write(folder, member("moe_perf", system), layers)
        wide = member("moe_perf", system).replace("moe_perf", "wideep_context_moe_perf")
        write(folder, wide, layers)
        write(folder, member("context_attention_perf", system), rows("context_attention_perf"))
        (folder / f"{system}.yaml").write_text(SYSTEM.format(bandwidth=3_350_000_000_000))
    return folder


def known(systems: Path) -> Truth:
    """Return the products of H100 in the tables."""
    path = member("gemm_perf")
    digest = hashlib.sha256((systems / path.removeprefix(ROOT)).read_bytes()).hexdigest()
    fields = {"module": "gemm", "backend": "vllm", "platform": "h100", "d_ff": 8192}
    settings, points = make_curves(*((fields | {"d_model": k}, TIMES) for k in DEPTHS))
    return truth(
        settings.with_columns(pl.lit(path).alias("member"), pl.lit(digest).alias("member_sha256")),
        points,
        [0.2],
    )


def tables(folder: Path) -> dict[str, pl.DataFrame]:
    """Return the tables of a folder of systems by their path."""
    return {
        str(path.relative_to(folder)): pl.read_parquet(path)
        for path in sorted(folder.rglob("*.parquet"))
    }


@pytest.mark.parametrize(
    ("module", "names"),
    [
        ("gemm", {"k": "d_model"}),
        ("moe_ffn", {"hidden_size": "d_model", "num_experts": "experts", "topk": "top_k"}),
    ],
)
def test_a_fold_is_in_no_table_of_its_copy(
    systems: Path, tmp_path: Path, module: str, names: dict[str, str]
) -> None:
    """Of all tables of a module exactly the rows of a fold's models are gone; no source changes."""
    before, gone = tables(systems), 0
    for fold in range(FOLDS):
        copy = tmp_path / f"copy{fold}"
        fold_rows = copy_without(systems, copy, module, fold)
        left = tables(copy)
        assert left.keys() == {name for name in before if f"/{module.partition('_')[0]}/" in name}
        lost = 0
        for name, rest in left.items():
            renamed = before[name].rename(names).with_columns(pl.lit(module).alias("module"))
            stays = pl.Series([part != fold for part in fold_of(renamed)])
            assert rest.equals(before[name].filter(stays))
            lost += before[name].height - rest.height
        assert fold_rows == lost
        gone += lost
        assert {path.name for path in copy.glob("*.yaml")} == {"h100_sxm.yaml", "h200_sxm.yaml"}
    assert gone == sum(table.height for table in left.values()) + fold_rows  # each row once
    assert all(table.equals(before[name]) for name, table in tables(systems).items())


@pytest.mark.slow
def test_the_sdk_has_lost_what_it_is_asked_for(systems: Path, tmp_path: Path) -> None:
    """An SDK that looks up its tables refuses every setting, and knows each where none is lost."""
    products = known(systems)
    asked_for = queries(products, systems, "bfloat16", whole=False)
    sdk = stand_in(tmp_path, READS_TABLES)
    answers = held_out_answers(products, asked_for, sdk, systems, "HYBRID")
    assert refusal_counts(answers) == {"Gone": len(DEPTHS)}
    missed = score_answers(products, answers, "peer")
    assert not missed["hit"].any()
    assert missed["t_ratio_error"].is_null().all()
    all_known = score_answers(products, sdk.latency(systems, "HYBRID", asked_for), "peer")
    assert all_known["hit"].all()
    assert all_known["t_ratio_error"].max() == pytest.approx(0.0, abs=1e-12)


def test_other_tables_than_the_imported_are_refused(systems: Path) -> None:
    """A table of the SDK with other bytes than a curve was imported from ends the comparison."""
    products = known(systems)
    write(systems, member("gemm_perf"), rows("gemm_perf", (1, 1.0)))
    with pytest.raises(ConfigError, match="is not what was imported"):
        queries(products, systems, "bfloat16", whole=False)


def test_a_layer_is_asked_for_as_the_table_cuts_it(systems: Path) -> None:
    """d_ff of one GPU is found under the fewest GPUs that a table cuts it over."""
    cuts = gpus_per_layer(systems, member("moe_perf"), "bfloat16")
    assert cuts[4096, 48, 512, 8] == 2
    assert cuts[4096, 24, 512, 8] == 4
    assert gpus_per_layer(systems, member("moe_perf"), "fp8") == {}


def test_answers_come_in_the_order_of_queries(tmp_path: Path) -> None:
    """Latencies and refusals are told apart and keep their places."""
    sdk = saying(tmp_path, '{"answers": [{"refusal": "X: no"}, {"latency_ms": [0.5, 1]}]}')
    assert sdk.latency(tmp_path, "HYBRID", [QUERY, QUERY]) == [
        Answer(refusal="X: no"),
        Answer(latency_ms=(0.5, 1.0)),
    ]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('{"answers": []}', "0 answers to 1"),
        ('{"answers": [{"latency_ms": [1]}]}', "1 latencies for 2"),
        ('{"answers": [{"latency_ms": [1, 0]}]}', "no positive number"),
        ('{"answers": [{"latency_ms": [1, -1]}]}', "no positive number"),
        ('{"answers": [{}]}', "neither latencies nor a refusal"),
        ('{"answers": [{"latency_ms": [1, 2], "refusal": "X"}]}', "neither latencies nor"),
        ('{"answers": [{"latency_ms": [1, NaN]}]}', "no answer"),
        ('{"answers": [{"latency_ms": [1, "2"]}]}', "no answer"),
        ('{"versions": {}}', "no answer"),
        ("Loading tables...", "no answer"),
    ],
)
def test_what_is_no_answer_is_refused(tmp_path: Path, text: str, why: str) -> None:
    """An answer of another form, number or length ends the comparison with an error."""
    with pytest.raises(ConfigError, match=why):
        saying(tmp_path, text).latency(tmp_path, "HYBRID", [QUERY])


def test_an_answer_may_not_be_too_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is longer than an answer can be is not read."""
    monkeypatch.setattr(protocol, "MAX_BYTES", 10)
    with pytest.raises(ConfigError, match="more than 10 bytes"):
        saying(tmp_path, '{"answers": [{"refusal": "X"}]}').latency(tmp_path, "HYBRID", [QUERY])


def test_an_sdk_that_never_answers_is_ended(tmp_path: Path) -> None:
    """After its time limit the process is ended, and the error names the limit."""
    sdk = stand_in(tmp_path, "import time; time.sleep(600)", timeout_s=0.5)
    with pytest.raises(ConfigError, match=r"no answer in 0\.5 s"):
        sdk.installation()


def test_an_interpreter_without_the_sdk_says_so(tmp_path: Path) -> None:
    """The SDK's side of the protocol names what is missing, and a missing interpreter is told."""
    with pytest.raises(ConfigError, match=r"code 1: ModuleNotFoundError.*aiconfigurator_core"):
        Sdk(Path(sys.executable), 60.0, SCRIPT).installation()
    with pytest.raises(ConfigError, match="cannot be started"):
        Sdk(tmp_path / "python", 60.0).installation()
