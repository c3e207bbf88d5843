"""Each number's formula names the code that computed it."""

import pytest
from nearfree.derive.jobs import TABLES
from nearfree.log.codebase import closure
from nearfree.prove.audit.table_index import TableIndex

pytestmark = pytest.mark.slow


def test_every_table_has_a_formula_and_code_that_is_there(shared):
    """Every row of every table has a formula, whose code is a module of this project."""
    index = TableIndex(shared.layout)
    for name in TABLES:
        for _, frame in index.parts(name):
            for row in frame.head(50).iter_rows(named=True):
                formula = TABLES[name].formula_of(row)
                assert formula.text
                assert closure(formula.code)


@pytest.mark.parametrize(
    ("table", "row", "text", "paper"),
    [
        ("predictions", {"predictor": "idle_compute", "module": "dense_ffn"},
         "N_idle = rho s / (2 b)", "sec. 3.2"),
        ("predictions", {"predictor": "principle_resolved", "module": "attention"},
         "N_max = M_attn", "sec. 4.1"),
        ("predictions", {"predictor": "modules_minimum", "module": "model"},
         "the smallest boundary of the modules", ""),
        ("lookup", {"predictor": "idle_compute", "composition": "minimum"},
         "the smallest N_idle", "sec. 3"),
        ("lookup", {"predictor": "principle", "composition": "minimum"},
         "M_moe E / (b k) and tau / b", "sec. 4.1"),
        ("lookup", {"predictor": "work_model", "composition": "sum"}, "T the sum of", ""),
        ("predictions", {"predictor": "principle", "module": "moe_ffn"},
         "M_moe E / (b k), tau / b", "sec. 4.2"),
        ("predictions", {"predictor": "principle_resolved", "module": "model"},
         "and M_attn", "sec. 4.1"),
        ("boundaries", {"origin": "measured"}, "ratio(N) <= 1 + epsilon", "sec. 2.2"),
        ("boundaries", {"origin": "published"}, "as printed", "sec. 2.2"),
    ],
)  # fmt: skip
def test_a_law_has_its_own_formula(table, row, text, paper):
    """A law's prediction has that law's formula; what is not from the paper cites no section."""
    formula = TABLES[table].formula_of(row)
    assert text in formula.text
    assert formula.paper.startswith(paper)
    assert bool(formula.paper) == bool(paper)
