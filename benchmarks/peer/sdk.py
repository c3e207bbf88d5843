"""Query AIConfigurator's SDK for latencies; run by the SDK's own interpreter, without nearfree.

It reads one JSON object from standard input and writes one to standard output. What the SDK prints
goes to standard error.

The answer to `{"ask": "where"}` is `{"versions": {package: version}, "systems": folder}`; the
folder holds the SDK's tables. The answer to `{"ask": "latency", "systems": folder, "mode": mode,
"queries": [query]}` is `{"answers": [answer]}`, in order. A query has module, system, backend,
version, quant, sizes and n, the numbers of rows or tokens. Its answer is `{"latency_ms": [...]}`,
one latency per number, or `{"refusal": reason}`.

Latencies come from `EngineHandle.evaluate_ops_json` over a single `GEMM` or `MoE` operation
(aiconfigurator-core 0.12.0, sdk/engine.py lines 749 and 1026; sdk/operations/gemm.py and moe.py).
That is a compiled engine, which reads the tables of a folder of systems itself. By its source
(0.11.0, commit 095f58a, below aic-core/rust/aiconfigurator-core/src) an unknown product takes its
utilisation from up to four neighbours with the same number of rows (perf_database/gemm.rs lines 229
to 231); in mode HYBRID an unknown layer of experts takes that of the nearest layer
(operators/moe.rs line 657).
"""

import json
import os
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

PACKAGES = ("aiconfigurator", "aiconfigurator-core")


def where() -> dict[str, Any]:
    """Return the versions of the SDK's packages, and the folder of its tables."""
    import aiconfigurator_core

    versions = {}
    for package in PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    return {
        "versions": versions,
        "systems": str(Path(aiconfigurator_core.__file__).parent / "systems"),
    }


def operation(query: dict[str, Any]) -> Any:
    """Return the SDK's operation of a query."""
    from aiconfigurator_core.sdk import common
    from aiconfigurator_core.sdk.operations import GEMM, MoE

    sizes = query["sizes"]
    if query["module"] == "gemm":
        quant = common.GEMMQuantMode[query["quant"]]
        return GEMM("gemm", 1.0, sizes["n"], sizes["k"], quant)
    names = ("hidden_size", "inter_size", "topk", "num_experts", "moe_tp_size")
    return MoE(
        *("moe", 1.0, *(sizes[name] for name in names)),
        *(1, common.MoEQuantMode[query["quant"]], "balanced", 1),
        is_gated=bool(sizes["gated"]),
    )


def latency(request: dict[str, Any]) -> dict[str, Any]:
    """Return an answer to each query of a request."""
    from aiconfigurator_core.sdk import engine, perf_database

    folder = request["systems"]
    handles: dict[tuple[str, ...], Any] = {}

    def handle(*names: str) -> Any:
        if names not in handles:
            database = perf_database.get_database_view(
                *names,
                systems_paths=folder,
                database_mode=request["mode"],
                allow_unlisted_version=True,
            )
            if database is None:
                raise LookupError(f"no tables of {' '.join(names)}")
            handles[names] = engine.EngineHandle.for_database(database, systems_path=folder)
        return handles[names]

    answers: list[dict[str, Any]] = []
    for query in request["queries"]:
        try:
            engine_handle = handle(query["system"], query["backend"], query["version"])
            operations = engine.build_ops_json([operation(query)])
            latencies = [
                engine_handle.evaluate_ops_json(
                    *(operations,), is_context=True, batch_size=1, s=1, prefix=0,
                    imbalance_correction_scale=1.0, x=n,
                )[0][1]
                for n in query["n"]
            ]  # fmt: skip
            answers.append({"latency_ms": latencies})
        except Exception as error:  # noqa: BLE001  # any error means that the SDK has no answer
            answers.append({"refusal": f"{type(error).__name__}: {error}"[:200]})
    return {"answers": answers}


def main() -> None:
    """Answer one request."""
    out = os.dup(1)
    os.dup2(2, 1)  # the SDK and its engine print to standard output, which is for the answer
    request = json.load(sys.stdin)
    answer = where() if request["ask"] == "where" else latency(request)
    with os.fdopen(out, "w") as file:
        json.dump(answer, file)


if __name__ == "__main__":
    main()
