"""Table `claims`: what the paper says, and whether the rows of a scope agree."""

from nearfree.derive.tables.schema import ORIGINS, Formula, Table, count, text

KINDS = ("research question", "finding", "claim")
HOLDS, FAILS, PARTLY, UNDECIDED = VERDICTS = ("holds", "fails", "partly", "undecided")

CLAIMS = Table(
    name="claims",
    row="one claim of the paper against the rows of one kind that a scope has of it",
    key=("claim", "platform", "module", "backend", "routing", "origin"),
    formula=Formula(
        text="a claim, checked on every row that it speaks of",
        code="nearfree.derive.claims",
    ),
    body={
        "claim": text("short name of the claim"),
        "kind": text("what it is in the paper", one_of=KINDS),
        "place": count("its place among the claims, as the paper has them"),
        "section": text("where the paper says it"),
        "says": text("the claim, with the rule by which a case counts as agreeing"),
        "platform": text("the kind of machine, none where it speaks of several", nullable=True),
        "module": text("dense_ffn, moe_ffn, attention or model, none where it speaks of no one",
                       nullable=True),
        "backend": text("what ran it", nullable=True),
        "routing": text("how tokens fell on experts, none also where two are compared",
                        nullable=True),
        "origin": text("where the checked rows come from, none where there is none to check",
                       nullable=True, one_of=ORIGINS),
        "verdict": text(
            "of the cases that can be told: holds, if all agree; partly, if some do not and more "
            "than half do; fails, if some do not and half or fewer do; undecided, if none "
            "disagrees and most cannot be told, or there is none. A claim of several parts holds "
            "if each does, and holds partly if they differ",
            one_of=VERDICTS,
        ),
        "checked": count("cases: settings, pairs of settings, or rows", at_least=0),
        "kept": count("of them, those that agree", at_least=0),
        "unclear": count("of them, those that cannot be told: an interval that holds both "
                         "answers, an end of the grid, or a fact that is missing", at_least=0),
        "worst": text("the case that disagrees most, with its numbers; empty if none does"),
        "why": text("the verdict in a sentence, with numbers"),
    },
)  # fmt: skip
