"""Answers of the paper's laws on frames: idle compute, the principle, and the principle resolved.

A law has no tolerance: its answer is the same at each. Every answer holds the paper's value and
that of the extended formula, which has batch in the MoE law, g = heads / kv_heads in attention's
idle compute, and three matrices for gated experts. The two are equal where the extension changes
nothing. The laws themselves are in `core.modules`; each distinct question is answered once.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from itertools import chain
from typing import Any

import polars as pl

from nearfree.backends.moe_kernels import NAIVE
from nearfree.core.modules.attention import AttentionQuestion
from nearfree.core.modules.kind import Granularity, Laws, ModuleKind, smallest_term
from nearfree.core.modules.mla import MlaQuestion
from nearfree.core.modules.moe_ffn import MoeQuestion
from nearfree.core.modules.registry import KINDS
from nearfree.core.modules.routing import LAW_ROUTINGS
from nearfree.core.predictors import LAWS
from nearfree.core.routing_names import POWER_LAW
from nearfree.core.setting import Setting
from nearfree.core.setting_check import required
from nearfree.derive.granularity.facts import with_facts
from nearfree.derive.granularity.resolve import Resolver
from nearfree.errors import ConfigError, NearfreeError
from nearfree.sources.answers.latent import LatentCall

LAWFUL: dict[str, Laws] = {name: kind.laws for name, kind in KINDS.items() if kind.laws}
"""The laws of the module kinds that have laws."""
GRANULAR = [name for name, laws in LAWFUL.items() if laws.letter]
ROUTED = [name for name, kind in KINDS.items() if kind.routed]
CACHED = [name for name, kind in KINDS.items() if kind.has_cache]


@cache
def law_refusal(*, by_balance: bool) -> pl.Expr:
    """Return the reason why a law has no answer; null where it has one.

    With `by_balance` the law needs rho for every module; without it, only for modules whose law has
    no granularity.
    """
    by_rho = [name for name in LAWFUL if by_balance or name not in GRANULAR]
    return pl.coalesce(shape_refusal(), pl.when(_module.is_in(by_rho)).then(facts_refusal()))


def shape_refusal(*, law: bool = True) -> pl.Expr:
    """Return the reason why a question's own fields allow no answer; null where they do.

    The paper's laws cover attention over a cache and the two bounds of routing only. Without `law`
    the reason is that of T(N), which needs only the expected loads.
    """
    routing = pl.col("routing")
    has_loads = routing.is_in(LAW_ROUTINGS)
    if not law:
        has_loads |= routing.str.contains(f"^(?:{POWER_LAW}|loads:.+)$")
    without_loads = _module.is_in(ROUTED) & ~has_loads
    uncached = _module.is_in(CACHED) & (pl.col("context") == 0) & law
    required_fields = {name: laws.needs for name, laws in LAWFUL.items()}
    if not law:
        lawless = [kind.name for kind in KINDS.values() if kind.work and not kind.laws]
        required_fields |= {name: required(name) for name in lawless}
    missing = [
        pl.when((_module == module) & pl.col(field).is_null()).then(
            written(f"the {{}} setting lacks {field}", "module")
        )
        for module, fields in required_fields.items()
        for field in fields
    ]
    return pl.coalesce(
        pl.when(~_module.is_in(list(required_fields))).then(
            written("no law for the module {} yet", "module")
        ),
        *missing,
        pl.when(without_loads).then(
            written("no law for {} routing" if law else "no loads of {} routing", "routing")
        ),
        pl.when(uncached).then(pl.lit("no law for attention without a cache (context 0)")),
    )


_NO_UNITS = "{} has no {} units; weights alone can be {} there"


def facts_refusal() -> pl.Expr:
    """Return the reason of a missing platform fact, phi or beta; null where none is missing."""
    return pl.coalesce(
        pl.when(pl.col("known").is_null()).then(written("no facts of {}", "platform")),
        pl.when(pl.col("no_units")).then(written(_NO_UNITS, "platform", "dtype", "dtype")),
        pl.when(pl.col("peak_tflops").is_null()).then(
            written("no phi of {} for {}", "platform", "dtype")
        ),
        pl.when(pl.col("bandwidth_gb_s").is_null()).then(written("no beta of {}", "platform")),
    )


def written(form: str, *columns: str) -> pl.Expr:
    """Return a sentence with columns in the places of `{}`, and a question mark for null."""
    return pl.format(form, *(pl.col(name).fill_null("?") for name in columns))


def ask_distinct(
    rows: pl.DataFrame,
    answer: Callable[[dict[str, Any]], Mapping[str, Any]],
    schema: Mapping[str, Any],
) -> pl.DataFrame:
    """Apply a function once to each distinct row, and return its answers in the rows' order.

    Parameters
    ----------
    rows
        The arguments of the function.
    answer
        Takes a row as a dict by column names and returns values by the names of `schema`; a
        missing value is null.
    schema
        The columns of the answers.
    """
    distinct = rows.unique(maintain_order=True)
    answers = [answer(question) for question in distinct.iter_rows(named=True)]
    places = rows.join(
        distinct.with_row_index("place"),
        on=rows.columns,
        how="left",
        nulls_equal=True,
        maintain_order="left",
    )["place"]
    return pl.DataFrame(answers, schema=schema)[places]


def resolved(resolver: Resolver, question: Any, baseline: int, tokens: int) -> Granularity:
    """Return the granularity of a layer or call at its baseline N, with `tokens` rows b N.

    Raises NearfreeError if there are no rules for it, or the answer depends on an unknown fact.
    """
    return _BY_QUESTION[type(question)](resolver, question, baseline, tokens)


def _blocks(resolver: Resolver, question: MoeQuestion, _baseline: int, tokens: int) -> Granularity:
    steps = resolver.moe(question)
    block = steps.at(tokens)
    place = f"{steps.evidence(tokens)}, {block.source}, path {block.path}"
    rows = 1 if block.path == NAIVE else block.value  # each pair has a block of its own
    return Granularity(rows=rows, until=steps.tau(tokens), place=place)


def _tiles(
    resolver: Resolver, question: AttentionQuestion, baseline: int, _tokens: int
) -> Granularity:
    steps = resolver.attention(question)
    last = steps.last_alike(baseline)
    place = f"{steps.evidence(baseline)}, path {steps.at(baseline).path}"
    return Granularity(rows=float("inf") if last is None else last, place=place)


def _latent(_resolver: Resolver, question: MlaQuestion, baseline: int, _tokens: int) -> Granularity:
    last, place = LatentCall.of(question).last_alike(baseline)
    return Granularity(rows=last, place=place)


_BY_QUESTION: dict[type, Callable[[Resolver, Any, int, int], Granularity]] = {
    MoeQuestion: _blocks,
    AttentionQuestion: _tiles,
    MlaQuestion: _latent,
}


ANSWERS_SCHEMA: dict[str, Any] = {
    "asked": pl.Int64,
    "predictor": pl.String,
    "epsilon": pl.Float64,
    "n_max": pl.Float64,
    "n_max_extended": pl.Float64,
    "low": pl.Float64,
    "high": pl.Float64,
    "limiting_module": pl.String,
    "limiting_term": pl.String,
    "evidence": pl.String,
    "margin": pl.Float64,
    "constants": pl.String,
    "regime": pl.String,
    "calibration": pl.List(pl.String),
    "refusal": pl.String,
}
"""A predictor's answer to a question at a tolerance: a value (+inf: unbounded) or a refusal.

`evidence` is the source of its rule or formula, `calibration` the events of its constants, `regime`
the evidence class of T(N)."""
_ANSWER = {
    name: ANSWERS_SCHEMA[name]
    for name in ("n_max", "n_max_extended", "limiting_term", "evidence", "margin", "refusal")
}
_BALANCE, _ROW = "balance_flop_per_byte", "row"
_module = pl.col("module")
Answer = Mapping[str, Any]


def answer_laws(
    questions: pl.DataFrame,
    facts: pl.DataFrame,
    epsilons: Sequence[float],
    resolver: Resolver,
    predictors: Sequence[str] = LAWS,
) -> pl.DataFrame:
    """Return the answers of laws: a row per question, predictor and tolerance.

    Parameters
    ----------
    questions
        Questions: asked (their key), platform, the setting's columns, backend_version, kernel,
        baseline, grid.
    facts
        phi, beta and rho, one row per platform and dtype, as `datasheet_facts` gives them.
    epsilons
        Tolerances; a law's answer is the same at each.
    resolver
        The rules of releases, used by principle_resolved only.

    Raises
    ------
    ConfigError
        There is no such law.
    """
    unknown = [name for name in predictors if name not in _LAWS]
    if unknown:
        raise ConfigError(f"no law {unknown[0]!r}", remedy=f"Choose from {', '.join(_LAWS)}")
    rows = with_facts(questions, facts)
    tolerances = pl.DataFrame({"epsilon": list(epsilons)}, schema={"epsilon": pl.Float64})
    frames = [_answers(rows, name, resolver).join(tolerances, how="cross") for name in predictors]
    return pl.concat([pl.DataFrame(schema=ANSWERS_SCHEMA), *frames], how="diagonal")


def _answers(rows: pl.DataFrame, predictor: str, resolver: Resolver) -> pl.DataFrame:
    refusal = law_refusal(by_balance=predictor == "idle_compute").alias("refusal")
    has_value = pl.col("refusal").is_null()
    return _LAWS[predictor](rows.with_columns(refusal), resolver).select(
        "asked",
        pl.lit(predictor).alias("predictor"),
        pl.when(has_value).then(_module).alias("limiting_module"),
        *(pl.when(has_value).then(name).alias(name) for name in _ANSWER if name != "refusal"),
        "refusal",
    )


def _answer_idle(rows: pl.DataFrame, _: Resolver) -> pl.DataFrame:
    def answer(kind: ModuleKind, laws: Laws, question: Answer) -> Answer:
        setting, balance = _setting(kind, laws.idle_fields, question), question[_BALANCE]
        return {
            "n_max": laws.idle_compute(setting, balance, extended=False),
            "n_max_extended": laws.idle_compute(setting, balance, extended=True),
            "limiting_term": laws.idle_term,
            "evidence": laws.idle_place,
        }

    return _apply_law(rows, lambda _, laws: ("dtype", _BALANCE, *laws.idle_fields), answer)


def _answer_principle(rows: pl.DataFrame, _: Resolver) -> pl.DataFrame:
    def answer(kind: ModuleKind, laws: Laws, question: Answer) -> Answer:
        setting = _setting(kind, laws.term_fields, question)
        try:
            granularity = laws.printed(setting, question["kernel"]) if laws.printed else None
            return _smallest(laws, setting, question.get(_BALANCE, 0.0), granularity)
        except NearfreeError as error:
            return {"refusal": error.what}

    answered = _apply_law(
        rows,
        lambda _, laws: ("backend", "dtype", "kernel", *laws.term_fields, *_balance(laws)),
        answer,
    )
    no_device = pl.when(_module.is_in(GRANULAR) & pl.col("sm").is_null()).then(
        written("{} has no compute capability for {}", "platform", "backend")
    )
    return answered.with_columns(pl.coalesce("refusal", no_device).alias("refusal"))


def _answer_resolved(rows: pl.DataFrame, resolver: Resolver) -> pl.DataFrame:
    def answer(kind: ModuleKind, laws: Laws, question: Answer) -> Answer:
        granularity = None
        try:
            if kind.question is not None:
                rule_question = kind.question(
                    **{name: question[name] for name in kind.question_fields}
                )
                tokens = question["batch"] * question["baseline"]
                granularity = resolved(resolver, rule_question, question["baseline"], tokens)
            setting = _setting(kind, laws.term_fields, question)
            balance = question.get(_BALANCE, 0.0)
            return _smallest(laws, setting, balance, granularity, extended_only=True)
        except NearfreeError as error:
            return {"refusal": error.what}

    checked = rows.with_columns(
        pl.col("grid").list.max().fill_null(pl.col("baseline")).alias("most"),
        pl.col("backend_version").replace("", None),
    )
    return _apply_law(
        checked,
        lambda kind, laws: (
            *("backend", "dtype", "batch", *laws.term_fields, *_balance(laws)),
            *((*kind.question_fields, "baseline") if kind.question else ()),
        ),
        answer,
    )


def _apply_law(
    rows: pl.DataFrame,
    columns_for: Callable[[ModuleKind, Laws], Sequence[str]],
    answer: Callable[[ModuleKind, Laws, Answer], Answer],
) -> pl.DataFrame:
    """Return the rows with a law's answers to those without a refusal.

    `columns_for` returns the columns that the law reads of a module; rows that agree in them get
    one answer.
    """
    columns = {module: [*columns_for(KINDS[module], laws)] for module, laws in LAWFUL.items()}
    every_column = dict.fromkeys(chain.from_iterable(columns.values()))
    numbered = rows.select("module", "refusal", *every_column).with_row_index(_ROW)
    frames = [pl.DataFrame(schema={_ROW: pl.UInt32, **_ANSWER})]
    answerable = numbered.filter(pl.col("refusal").is_null()).partition_by("module", as_dict=True)
    for (module,), part in answerable.items():
        answer_row = partial(answer, KINDS[module], LAWFUL[module])
        distinct = part.select(*dict.fromkeys(columns[module]))
        frames.append(part.select(_ROW).hstack(ask_distinct(distinct, answer_row, _ANSWER)))
    by_row = pl.concat(frames)
    answers = numbered.select(_ROW).join(by_row, on=_ROW, how="left", maintain_order="left")
    refusal = pl.coalesce("refusal", answers["refusal"])
    return rows.hstack(answers.drop(_ROW, "refusal")).with_columns(refusal.alias("refusal"))


def _setting(kind: ModuleKind, fields: Sequence[str], question: Answer) -> Setting:
    values = {name: question[name] for name in ("dtype", *fields)}
    return Setting(module=kind.name, backend=question.get("backend", ""), **values)


def _balance(laws: Laws) -> tuple[str, ...]:
    """Return the column of rho if the principle needs it; else it needs a granularity."""
    return () if laws.letter else (_BALANCE,)


def _smallest(
    laws: Laws,
    setting: Setting,
    balance: float,
    granularity: Granularity | None,
    *,
    extended_only: bool = False,
) -> Answer:
    """Return the smallest term, in the paper's and the extended form, or in the extended only."""
    extended = smallest_term(laws.terms(setting, balance, granularity, extended=True))
    paper = extended
    if not extended_only:
        paper = smallest_term(laws.terms(setting, balance, granularity, extended=False))
    return {
        "n_max": paper.value,
        "n_max_extended": extended.value,
        "limiting_term": paper.names[0],
        "evidence": granularity.place if granularity else laws.principle_place,
        "margin": paper.margin,
    }


_LAWS = dict(zip(LAWS, (_answer_idle, _answer_principle, _answer_resolved), strict=True))
