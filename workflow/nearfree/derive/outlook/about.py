"""Columns shared by tables of deployments: serving condition, precision, memory, and sources."""

from collections.abc import Mapping, Sequence

import msgspec
import polars as pl

from nearfree.config.files import Config, DeploymentSpec
from nearfree.core.parallel import DEGREES
from nearfree.core.precision import FORMATS
from nearfree.decoders.model_file import ModelFile, find_model_file
from nearfree.derive.memory import COLLECTIVE_BYTES, ENGINE_BYTES, PAGE_POSITIONS, PROMPT_TOKENS
from nearfree.derive.predict.forecast.deployment import Deployment
from nearfree.derive.tables.columns import IDS, SETTING_COLUMNS, count, flag, text
from nearfree.derive.tables.schema import Formula
from nearfree.log.line import sha256
from nearfree.units import BYTES_PER_GB

CONDITION = {
    "deployment": text("the entry of deployments.yaml"),
    "model": text("the model file's name"),
    "platform": text("the kind of machine"),
    "attention": text("the backend of attention, with its version"),
    "moe": text("the backend of the experts, with its version", nullable=True),
    "routing": text("how tokens fall on experts", nullable=True),
    "dtype": text("format of the rows that enter the products of most weights"),
    "weights": text("format that most weights are stored in: the experts', or the FFN's"),
    "kv_dtype": text("format of the KV cache"),
    **{name: SETTING_COLUMNS[name] for name in DEGREES},
    "batch": count("b, requests in one forward"),
    "context": count("L, cached positions a request"),
}
MEMORY = {
    "fits": flag("whether it fits in memory at N = 1; empty where that is not known",
                 nullable=True),
    "weights_bytes": count("bytes of all weights as stored, with scales", nullable=True),
    "kv_bytes": count("bytes of the KV cache of all requests", nullable=True, at_least=0),
    "activations_bytes": count("bytes of a forward's activations", nullable=True),
    "engine_bytes": count("bytes allowed for the engine itself", nullable=True),
    "peak_bytes": count("bytes of all parts together", nullable=True),
    "rank_bytes": count("bytes on the GPU that holds most", nullable=True),
    "capacity_bytes": count("bytes of the memory of all its GPUs", nullable=True),
    "gpus_needed": count("GPUs that hold the same, a power of two; empty where none do",
                         nullable=True),
    "largest_batch": count("the largest b that fits at that L, 0 where none does; empty where "
                           "nothing limits it", nullable=True, at_least=0),
    "largest_context": count("the largest L that fits at that b, 0 where none does; empty where "
                             "nothing limits it", nullable=True, at_least=0),
}  # fmt: skip
"""Memory and whether it fits, by the field names of `derive.memory.Memory`."""
MEMORY_COLUMNS = MEMORY | {
    "left_out": text("parts that the bytes of weights leave out", nullable=True)
}
"""The columns of memory in tables."""
GRAPHS = {
    "graphs": text(
        "the engine's release whose CUDA graphs steps are padded to; empty for no padding",
        nullable=True,
    ),
}
UNFIT = "does not fit"
"""Text in place of an N_max where the deployment does not fit in memory."""
MEMORY_FORMULA = Formula(
    text="fits: on the GPU that holds most, weights as stored + cache of b (L + 1) positions, in "
    f"pages of {PAGE_POSITIONS} + what max(b, {PROMPT_TOKENS}) tokens make of a layer and b "
    f"positions of logits + {ENGINE_BYTES / BYTES_PER_GB:g} GB for the engine and, on several, "
    f"{COLLECTIVE_BYTES / BYTES_PER_GB:.2g} GB for collectives, at most its memory",
    paper="",
    code="nearfree.derive.memory",
)
"""The formula of the columns of MEMORY."""
MODELS = "config/models:"
"""Prefix of the ids of model files."""
_IRRELEVANT_FIELDS = ("name", "file", "refusals", "mixed", "positions", "drafts")
"""Fields of a model file that affect no number."""


def model_fields(model: ModelFile) -> dict[str, object]:
    """Return the fields of a model file that rows depend on: forward, precision and weights."""
    values: dict[str, object] = msgspec.to_builtins(model)
    return {name: value for name, value in values.items() if name not in _IRRELEVANT_FIELDS}


def model_id(model: ModelFile) -> str:
    """Return the id of a model in rows: its name and a digest of the fields of `model_fields`."""
    digest = sha256(msgspec.json.encode(model_fields(model), order="deterministic"))
    return f"{MODELS}{model.name}@{digest[:12]}"


def model_ids(config: Config, spec: DeploymentSpec) -> dict[str, str]:
    """Return the ids of the models of an entry of deployments.yaml, by their names."""
    files = (find_model_file(config.folder, name) for name in spec.models)
    return {file.name: model_id(file) for file in files}


def condition_rows(
    name: str,
    deployments: Sequence[Deployment],
    models: Mapping[str, str],
    platforms: pl.DataFrame,
) -> pl.DataFrame:
    """Return the shared columns of deployments' rows, by `place`, with the ids of `sources`.

    `platforms` are rows of the table of that name, whose datasheets answers rest on.
    """
    sheets = platforms.filter(basis="datasheet").select("platform", "dtype", "row_id")
    facts = {(platform, dtype): row for platform, dtype, row in sheets.rows()}
    rows = []
    for place, deployment in enumerate(deployments):
        fact_ids = [facts.get((deployment.platform, peak)) for peak in _peaks(deployment)]
        formats = {"weights": deployment.said["weights"], "kv_dtype": deployment.said["kv"]}
        memory = {column: getattr(deployment.memory, column, None) for column in MEMORY}
        memory["left_out"] = (
            "; ".join(deployment.memory.notes) or None if deployment.memory else None
        )
        sources = [*filter(None, fact_ids), models[deployment.decoder.name]]
        row = {"place": place, "deployment": name, **deployment.about, **formats, **memory}
        rows.append(row | {"sources": sources})
    types = {column: kind.dtype for column, kind in (CONDITION | MEMORY_COLUMNS | GRAPHS).items()}
    return pl.DataFrame(rows, schema={"place": pl.Int64, **types, "sources": IDS})


def _peaks(deployment: Deployment) -> list[str]:
    """Return the peaks of a deployment's products, as datasheets name them."""
    formats = deployment.formats
    dtypes = [product.activations for _, product in formats.products]
    return list(dict.fromkeys(FORMATS[dtype].peak for dtype in (*dtypes, formats.plain)))
