"""The paper's laws, asked of frames: idle compute, the principle, and the principle resolved.

A law knows no tolerance: its answer is the same at each. Beside the paper's value stands that of
the extended formula: batch in the MoE law, g = heads / kv_heads in attention's idle compute, three
matrices where experts are gated; it is equal where the extension changes nothing. The laws
themselves stand in `core.modules`; each distinct question is asked once.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import Any

import polars as pl

from nearfree.backends.moe_kernels import NAIVE
from nearfree.core.modules.attention import AttentionQuestion
from nearfree.core.modules.kind import Granularity, Laws, ModuleKind, smallest
from nearfree.core.modules.mla import MlaQuestion
from nearfree.core.modules.moe_ffn import MoeQuestion
from nearfree.core.modules.registry import KINDS
from nearfree.core.modules.routing import SPREADS
from nearfree.core.routing_names import POWER_LAW
from nearfree.core.setting import Setting
from nearfree.core.setting_check import required
from nearfree.derive.granularity.facts import with_facts
from nearfree.derive.granularity.resolve import Resolver
from nearfree.errors import ConfigError, NearfreeError
from nearfree.sources.answers.latent import LatentCall

LAWFUL: dict[str, Laws] = {name: kind.laws for name, kind in KINDS.items() if kind.laws}
"""The laws of the kinds of modules that have some."""
GRANULAR = [name for name, laws in LAWFUL.items() if laws.letter]
ROUTED = [name for name, kind in KINDS.items() if kind.routed]
CACHED = [name for name, kind in KINDS.items() if kind.has_cache]


@cache
def law_refusal(*, by_balance: bool) -> pl.Expr:
    """Return why a law cannot be asked; null where it can.

    `by_balance` says that it asks for rho whatever the module is; else only the laws without a
    granularity do.
    """
    bare = [name for name in LAWFUL if by_balance or name not in GRANULAR]
    return pl.coalesce(shape_refusal(), pl.when(_module.is_in(bare)).then(facts_refusal()))


def shape_refusal(*, law: bool = True) -> pl.Expr:
    """Return what a question itself lacks for any law; null where it lacks nothing.

    The paper's laws speak of attention over a cache and of the two bounds of routing alone; `law`
    says whether one of them is asked, or T(N), which needs no more than what loads are expected.
    """
    routing = pl.col("routing")
    spread = routing.is_in(SPREADS)
    if not law:
        spread |= routing.str.contains(f"^(?:{POWER_LAW}|loads:.+)$")
    unspread = _module.is_in(ROUTED) & ~spread
    uncached = _module.is_in(CACHED) & (pl.col("context") == 0) & law
    needs = {name: laws.needs for name, laws in LAWFUL.items()}
    if not law:
        needs |= {name: required(KINDS[name].name) for name in _LAWLESS}
    missing = [
        pl.when((_module == module) & pl.col(field).is_null()).then(
            written(f"the {{}} setting lacks {field}", "module")
        )
        for module, fields in needs.items()
        for field in fields
    ]
    return pl.coalesce(
        pl.when(~_module.is_in(list(needs))).then(
            written("no law for the module {} yet", "module")
        ),
        *missing,
        pl.when(unspread).then(
            written("no law for {} routing" if law else "no loads of {} routing", "routing")
        ),
        pl.when(uncached).then(pl.lit("no law for attention without a cache (context 0)")),
    )


_LAWLESS = ("attention_layer", "delta_net", "mamba2", "short_conv", "stream_mixing")
"""Modules of which T(N) is known though they have no law of the paper."""
_NO_UNITS = "{} has no {} units; weights alone can be {} there (--activations bfloat16)"


def facts_refusal() -> pl.Expr:
    """Return which fact of the platform is missing: phi or beta; null where none is."""
    return pl.coalesce(
        pl.when(pl.col("known").is_null()).then(written("no facts of {}", "platform")),
        pl.when(pl.col("no_units")).then(written(_NO_UNITS, "platform", "dtype", "dtype")),
        pl.when(pl.col("peak_tflops").is_null()).then(
            written("no phi of {} for {}", "platform", "dtype")
        ),
        pl.when(pl.col("bandwidth_gb_s").is_null()).then(written("no beta of {}", "platform")),
    )


def written(form: str, *columns: str) -> pl.Expr:
    """Return a sentence with columns in its places, a question mark for null."""
    return pl.format(form, *(pl.col(name).fill_null("?") for name in columns))


def ask_distinct(
    rows: pl.DataFrame,
    answer: Callable[[dict[str, Any]], Mapping[str, Any]],
    schema: Mapping[str, Any],
) -> pl.DataFrame:
    """Return what a function says of each row, in the rows' order.

    Parameters
    ----------
    rows
        What the function is asked.
    answer
        Takes a row by its columns' names and returns values by the names of `schema`; what it
        leaves out is null. It is called once for each distinct row.
    schema
        The columns of the answers.
    """
    distinct = rows.unique(maintain_order=True)
    answers = [answer(question) for question in distinct.iter_rows(named=True)]
    known = distinct.hstack(pl.DataFrame(answers, schema=schema).rename(_answer))
    found = rows.join(known, on=rows.columns, how="left", nulls_equal=True, maintain_order="left")
    return found.select(pl.col(_answer(name)).alias(name) for name in schema)


def _answer(name: str) -> str:
    return f"answer_{name}"


def resolved(resolver: Resolver, question: Any, baseline: int, tokens: int) -> Granularity:
    """Return the granularity of a layer or call at its baseline N, of so many tokens.

    Raises
    ------
    NearfreeError
        There are no rules of it, or the answer depends on a fact that is not known.
    """
    return _BY_QUESTION[type(question)](resolver, question, baseline, tokens)


def _blocks(resolver: Resolver, question: MoeQuestion, _baseline: int, tokens: int) -> Granularity:
    steps = resolver.moe(question)
    block = steps.at(tokens)
    place = f"{steps.evidence(tokens)}, {block.source}, path {block.path}"
    shared = 1 if block.path == NAIVE else block.value  # each pair has a block of its own
    return Granularity(rows=shared, until=steps.tau(tokens), place=place)


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
"""What a predictor says of a question at a tolerance: a value (+inf: unbounded) or a refusal.

`evidence` is where its rule or formula stands, `calibration` the events of its constants, `regime`
what T(N) stands on."""
_KEYS = {"asked", "predictor", "epsilon", "refusal"}
_ANSWER = {
    name: ANSWERS_SCHEMA[name]
    for name in ("n_max", "n_max_extended", "limiting_term", "evidence", "margin", "refusal")
}
_BALANCE, _ROW = "balance_flop_per_byte", "row"
_module = pl.col("module")
Answer = Mapping[str, Any]


def answer_laws(
    asked: pl.DataFrame,
    facts: pl.DataFrame,
    epsilons: Sequence[float],
    resolver: Resolver,
    predictors: Sequence[str] = ("idle_compute", "principle", "principle_resolved"),
) -> pl.DataFrame:
    """Return what each law says of each question: a row a question, predictor and tolerance.

    Parameters
    ----------
    asked
        Questions: asked (their key), platform, the setting's columns, backend_version, kernel,
        baseline, grid.
    facts
        phi, beta and rho, one row a platform and dtype, as `datasheet_facts` gives them.
    epsilons
        Tolerances; a law says the same at each.
    resolver
        The rules of releases, asked by principle_resolved alone.

    Raises
    ------
    ConfigError
        There is no such law.
    """
    unknown = [name for name in predictors if name not in _LAWS]
    if unknown:
        raise ConfigError(f"no law {unknown[0]!r}", remedy=f"Choose from {', '.join(_LAWS)}")
    rows = with_facts(asked, facts)
    tolerances = pl.DataFrame({"epsilon": list(epsilons)}, schema={"epsilon": pl.Float64})
    frames = [_answers(rows, name, resolver).join(tolerances, how="cross") for name in predictors]
    empty = pl.DataFrame(schema=ANSWERS_SCHEMA)
    return pl.concat([empty, *(frame.select(*ANSWERS_SCHEMA) for frame in frames)])


def _answers(rows: pl.DataFrame, predictor: str, resolver: Resolver) -> pl.DataFrame:
    judged = _LAWS[predictor](rows, resolver)
    stands = pl.col("refusal").is_null()
    return judged.with_columns(
        pl.lit(predictor).alias("predictor"),
        _module.alias("limiting_module"),
        *(
            pl.lit(None, ANSWERS_SCHEMA[name]).alias(name)
            for name in ("low", "high", "constants", "regime", "calibration")
        ),
    ).select(
        "asked",
        "predictor",
        *(
            pl.when(stands).then(pl.col(name)).alias(name)
            for name in ANSWERS_SCHEMA
            if name not in _KEYS
        ),
        "refusal",
    )


def _idle(rows: pl.DataFrame, resolver: Resolver) -> pl.DataFrame:
    del resolver

    def answer(kind: ModuleKind, laws: Laws, question: Answer) -> Answer:
        setting, balance = _setting(kind, laws.idle_fields, question), question[_BALANCE]
        return {
            "n_max": laws.idle_compute(setting, balance, extended=False),
            "n_max_extended": laws.idle_compute(setting, balance, extended=True),
            "limiting_term": laws.idle_term,
            "evidence": laws.idle_place,
        }

    judged = rows.with_columns(law_refusal(by_balance=True).alias("refusal"))
    return _ask(judged, lambda _, laws: ("dtype", _BALANCE, *laws.idle_fields), answer)


def _principle(rows: pl.DataFrame, resolver: Resolver) -> pl.DataFrame:
    del resolver

    def answer(kind: ModuleKind, laws: Laws, question: Answer) -> Answer:
        setting = _setting(kind, laws.term_fields, question)
        try:
            granularity = laws.printed(setting, question["kernel"]) if laws.printed else None
            return _smallest(laws, setting, question.get(_BALANCE, 0.0), granularity)
        except NearfreeError as error:
            return {"refusal": error.what}

    found = _ask(
        rows.with_columns(law_refusal(by_balance=False).alias("refusal")),
        lambda _, laws: ("backend", "dtype", "kernel", *laws.term_fields, *_balance(laws)),
        answer,
    )
    nowhere = pl.when(_module.is_in(GRANULAR) & pl.col("sm").is_null()).then(
        written("{} has no compute capability for {}", "platform", "backend")
    )
    return found.with_columns(pl.coalesce("refusal", nowhere).alias("refusal"))


def _resolved(rows: pl.DataFrame, resolver: Resolver) -> pl.DataFrame:
    def answer(kind: ModuleKind, laws: Laws, question: Answer) -> Answer:
        granularity = None
        try:
            if kind.question is not None:
                asked = kind.question(**{name: question[name] for name in kind.question_fields})
                tokens = question["batch"] * question["baseline"]
                granularity = resolved(resolver, asked, question["baseline"], tokens)
            setting, balance = (
                _setting(kind, laws.term_fields, question),
                question.get(_BALANCE, 0.0),
            )
            return _smallest(laws, setting, balance, granularity, extended_alone=True)
        except NearfreeError as error:
            return {"refusal": error.what}

    given = rows.with_columns(
        law_refusal(by_balance=False).alias("refusal"),
        pl.col("grid").list.max().fill_null(pl.col("baseline")).alias("most"),
        pl.col("backend_version").replace("", None),
    )
    return _ask(
        given,
        lambda kind, laws: (
            *("backend", "dtype", "batch", *laws.term_fields, *_balance(laws)),
            *((*kind.question_fields, "baseline") if kind.question else ()),
        ),
        answer,
    )


def _ask(
    rows: pl.DataFrame,
    names: Callable[[ModuleKind, Laws], Sequence[str]],
    answer: Callable[[ModuleKind, Laws, Answer], Answer],
) -> pl.DataFrame:
    """Return the rows with what a law says of those that have no refusal.

    `names` are the columns that the law asks for of a module: questions that agree in them are one.
    """
    asked_of = {module: names(KINDS[module], laws) for module, laws in LAWFUL.items()}
    columns = dict.fromkeys(name for each in asked_of.values() for name in each)
    free = rows.select("module", "refusal", *columns).with_row_index(_ROW)
    frames = [pl.DataFrame(schema={_ROW: pl.UInt32, **_ANSWER})]
    parts = free.filter(pl.col("refusal").is_null()).partition_by("module", as_dict=True)
    for (module,), mine in parts.items():
        ask = partial(answer, KINDS[module], LAWFUL[module])
        found = ask_distinct(mine.select(*dict.fromkeys(asked_of[module])), ask, _ANSWER)
        frames.append(mine.select(_ROW).hstack(found))
    found = free.select(_ROW).join(pl.concat(frames), on=_ROW, how="left", maintain_order="left")
    refusal = pl.coalesce("refusal", found["refusal"])
    return rows.hstack(found.drop(_ROW, "refusal")).with_columns(refusal.alias("refusal"))


def _setting(kind: ModuleKind, fields: Sequence[str], question: Answer) -> Setting:
    given = {name: question[name] for name in ("dtype", *fields)}
    return Setting(module=kind.name, backend=question.get("backend", ""), **given)


def _balance(laws: Laws) -> tuple[str, ...]:
    """Return the column of rho, if the principle asks for it: else it asks for a granularity."""
    return () if laws.letter else (_BALANCE,)


def _smallest(
    laws: Laws,
    setting: Setting,
    balance: float,
    granularity: Granularity | None,
    *,
    extended_alone: bool = False,
) -> Answer:
    """Return the smallest term; resolved, the extended form alone is stated."""
    wider = smallest(laws.terms(setting, balance, granularity, extended=True))
    paper = (
        wider
        if extended_alone
        else smallest(laws.terms(setting, balance, granularity, extended=False))
    )
    return {
        "n_max": paper.value,
        "n_max_extended": wider.value,
        "limiting_term": paper.names[0],
        "evidence": granularity.place if granularity else laws.principle_place,
        "margin": paper.margin,
    }


_LAWS = {"idle_compute": _idle, "principle": _principle, "principle_resolved": _resolved}
LAWS = tuple(_LAWS)
"""The predictors that are laws of the paper."""
