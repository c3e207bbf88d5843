"""Table `trend`: the balance point and the terms of a dense model's law over GPU generations.

Source: paper, app. on future hardware: rho grows, and with it rho s / 2 b. M_attn belongs to the
backend, so the table has it, too, as printed and as releases resolve it.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import product

import polars as pl
from msgspec import Struct

from nearfree.backends.records import page_size
from nearfree.core.modules.attention import ATTENTION, M_ATTN
from nearfree.core.modules.dense_ffn import IDLE
from nearfree.core.precision import Dtype
from nearfree.core.setting import Setting
from nearfree.derive.granularity.facts import sheet_facts
from nearfree.derive.granularity.query_frame import Question, asked_frame
from nearfree.derive.predict.answers import Answerer
from nearfree.derive.tables.columns import amount, count, finite_numbers, flag, text
from nearfree.derive.tables.schema import Table
from nearfree.hardware.platforms import Platform

TREND = Table(
    name="trend",
    row="one term of a dense model's law on one platform, with one element type and batch",
    key=("platform", "dtype", "batch", "term", "reference", "query_group"),
    formula="rho s / (2 b), and M_attn as the paper or a release has it",
    paper="sec. 4 and app. on hardware",
    code="nearfree.derive.outlook.trend",
    body={
        "platform": text("the kind of machine"),
        "vendor_name": text("the vendor's name of it", nullable=True),
        "year": count("release year", nullable=True),
        "architecture": text("GPU architecture", nullable=True),
        "dtype": text("element type"),
        "batch": count("b"),
        "peak_tflops": amount("phi"),
        "bandwidth_gb_s": amount("beta"),
        "balance_flop_per_byte": amount("rho"),
        "term": text("rho s / 2 b, or M_attn", one_of=(IDLE, M_ATTN)),
        "reference": text("whose M_attn: the paper's, or a backend's and its version; the paper's "
                          "formula for the other term"),
        "query_group": count("g, query heads to a key-value head", nullable=True),
        "n_max": amount("the term, positions", nullable=True),
        "unbounded": flag("whether no N is too large for it"),
        "rule": text("file and lines, or the paper's section", nullable=True),
        "refusal": text("the missing rule or fact", nullable=True),
    },
)  # fmt: skip
PAPER = "paper"
DTYPES: tuple[Dtype, ...] = ("bfloat16", "float8")
BATCHES = (1, 8)
GROUPS = (1, 4)
REFERENCES = (
    ("flash_attn", "2.8.3"),
    ("flashinfer_fa2", "0.6.13"),
    ("flashinfer_fa2", "0.7.2.post1"),
    ("flash_attn_4", "4.0.0b36"),
)
"""Attention backends and versions whose M_attn is shown."""
_HEADS, _HEAD_DIM, _CONTEXT = 32, 128, 4096
_EPSILON = 0.2  # a law says the same at each
_FACTS = ("peak_tflops", "bandwidth_gb_s", "balance_flop_per_byte", "fact_id")


class _TermQuery(Struct, frozen=True):
    """The query of one term, and the law that answers it."""

    term: str
    reference: str
    query_group: int | None
    law: str
    question: Question


def trend(
    sheets: Mapping[str, Platform],
    platforms: pl.DataFrame,
    answerer: Answerer,
    references: Sequence[tuple[str, str]] = REFERENCES,
) -> pl.DataFrame:
    """Return the rows of `trend`, with `from_ids`, for every platform and dtype that has a rho.

    Parameters
    ----------
    answerer
        Answers by the laws; it is given the facts of the datasheets.
    references
        Attention backends and versions.
    """
    facts = sheet_facts(sheets, platforms).drop_nulls("balance_flop_per_byte")
    platform_dtypes = facts.filter(pl.col("dtype").is_in(DTYPES))
    queries = [
        query
        for (platform, dtype), batch in product(
            platform_dtypes.select("platform", "dtype").rows(), BATCHES
        )
        for query in _terms(platform, dtype, batch, references)
    ]
    frame = asked_frame((query.question for query in queries), most=1)
    answers = answerer.on(facts).answers(
        frame, [_EPSILON], sorted({query.law for query in queries})
    )
    meta = pl.DataFrame(
        [(number, q.term, q.reference, q.query_group, q.law) for number, q in enumerate(queries)],
        schema={"asked": pl.Int64, "term": pl.String, "reference": pl.String,
                "query_group": pl.Int64, "predictor": pl.String},
        orient="row",
    )  # fmt: skip
    return (
        meta.join(frame, on="asked")
        .join(answers, on=["asked", "predictor"], how="left", maintain_order="left")
        .join(facts.select("platform", "dtype", *_FACTS), on=["platform", "dtype"], how="left")
        .join(_sheet_frame(sheets), on="platform", how="left")
        .with_columns(
            *finite_numbers("n_max"),
            pl.col("evidence").alias("rule"),
            pl.concat_list("fact_id").list.drop_nulls().alias("from_ids"),
        )
        .select(*TREND.body, "from_ids")
        .sort(*TREND.key)
    )


def _terms(
    platform: str, dtype: Dtype, batch: int, references: Sequence[tuple[str, str]]
) -> Iterator[_TermQuery]:
    ffn = Setting(module="dense_ffn", backend="any", dtype=dtype, batch=batch)
    yield _TermQuery(IDLE, PAPER, None, "principle", Question(platform=platform, setting=ffn))
    printed = Question(platform=platform, setting=_attention("flash_attn_2", dtype, batch, 1))
    yield _TermQuery(M_ATTN, PAPER, None, "principle", printed)
    for (backend, version), group in product(references, GROUPS):
        setting = _attention(backend, dtype, batch, group)
        question = Question(platform=platform, setting=setting, version=version)
        yield _TermQuery(M_ATTN, f"{backend} {version}", group, "principle_resolved", question)


def _attention(backend: str, dtype: Dtype, batch: int, group: int) -> Setting:
    return Setting(
        module=ATTENTION.name,
        backend=backend,
        dtype=dtype,
        batch=batch,
        context=_CONTEXT,
        heads=_HEADS,
        kv_heads=_HEADS // group,
        head_dim=_HEAD_DIM,
        page_size=page_size(backend),
    )


def _sheet_frame(sheets: Mapping[str, Platform]) -> pl.DataFrame:
    names = ("vendor_name", "year", "architecture")
    rows = [(name, *(getattr(sheet, field) for field in names)) for name, sheet in sheets.items()]
    types = {"vendor_name": pl.String, "year": pl.Int64, "architecture": pl.String}
    return pl.DataFrame(rows, schema={"platform": pl.String, **types}, orient="row")
