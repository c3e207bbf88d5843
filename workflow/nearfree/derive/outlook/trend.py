"""Table `trend`: the balance point and the terms of a dense model's law over GPU generations.

Source: paper, app. on future hardware: rho grows, and with it rho s / 2 b. M_attn belongs to the
backend, so the table has it, too, as printed and as releases resolve it.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from math import inf

import polars as pl

from nearfree.backends.records import page_size
from nearfree.core.modules.attention import ATTENTION, M_ATTN
from nearfree.core.modules.dense_ffn import IDLE
from nearfree.core.precision import Dtype
from nearfree.core.setting import Setting
from nearfree.derive.granularity.facts import sheet_facts
from nearfree.derive.granularity.query_frame import Question, asked_frame
from nearfree.derive.predict.answers import Answerer
from nearfree.derive.tables.columns import amount, count, finite, flag, text
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
_FACTS = ("platform", "dtype", "peak_tflops", "bandwidth_gb_s", "balance_flop_per_byte")
_SHEET = ("vendor_name", "year", "architecture")
_Term = tuple[str, str, int | None, str, Question]
"""A term, its reference and query group, and the law that answers its question."""


def trend(
    sheets: Mapping[str, Platform],
    platforms: pl.DataFrame,
    answerer: Answerer,
    references: Sequence[tuple[str, str]] = REFERENCES,
) -> pl.DataFrame:
    """Return the rows of `trend`, with `from_ids`, for every platform and dtype that has a rho.

    The answerer is given the facts of the datasheets; `references` are attention backends and
    versions.
    """
    facts = sheet_facts(sheets, platforms).drop_nulls("balance_flop_per_byte")
    queries = [
        (fact, *term)
        for fact in facts.filter(pl.col("dtype").is_in(DTYPES)).to_dicts()
        for batch in BATCHES
        for term in _terms(fact["platform"], fact["dtype"], batch, references)
    ]
    frame = asked_frame((question for *_, question in queries), most=1)
    laws = sorted({law for *_, law, _ in queries})
    answers = answerer.on(facts).answers(frame, [_EPSILON], laws).to_dicts()
    answer_of = {(row["asked"], row["predictor"]): row for row in answers}
    rows = []
    for asked, (fact, term, reference, group, law, question) in enumerate(queries):
        answer = answer_of[asked, law]
        rows.append({
            **{name: fact[name] for name in _FACTS},
            **{name: getattr(sheets[fact["platform"]], name) for name in _SHEET},
            "batch": question.setting.batch,
            "term": term,
            "reference": reference,
            "query_group": group,
            "n_max": finite(answer["n_max"]),
            "unbounded": answer["n_max"] == inf,
            "rule": answer["evidence"],
            "refusal": answer["refusal"],
            "from_ids": [*filter(None, [fact["fact_id"]])],
        })  # fmt: skip
    return TREND.frame(rows)


def _terms(
    platform: str, dtype: Dtype, batch: int, references: Sequence[tuple[str, str]]
) -> Iterator[_Term]:
    ffn = Setting(module="dense_ffn", backend="any", dtype=dtype, batch=batch)
    yield IDLE, PAPER, None, "principle", Question(platform=platform, setting=ffn)
    printed = Question(platform=platform, setting=_attention("flash_attn_2", dtype, batch, 1))
    yield M_ATTN, PAPER, None, "principle", printed
    for (backend, version), group in product(references, GROUPS):
        setting = _attention(backend, dtype, batch, group)
        question = Question(platform=platform, setting=setting, version=version)
        yield M_ATTN, f"{backend} {version}", group, "principle_resolved", question


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
