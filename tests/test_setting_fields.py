"""A setting's field is declared in one place, and everything that shows settings follows."""

import ast
from pathlib import Path

import nearfree
import pytest
from nearfree.core.label import AXES, NESTED, label
from nearfree.core.setting import FIELDS, MODULES, Setting
from nearfree.core.setting_field import Field
from nearfree.derive.tables.boundaries import BOUNDARIES
from nearfree.derive.tables.columns import SETTING_COLUMNS
from nearfree.public.curve_row import COLUMNS
from nearfree.public.curves import SETTINGS_SCHEMA
from nearfree.show.page import models
from nearfree.show.page.inline import facts

PACKAGE = Path(nearfree.__file__).parent
SHOWN = [path for room in ("show", "prove", "cli", "derive/tables", "derive/claims")
         for path in sorted((PACKAGE / room).rglob("*.py"))]  # fmt: skip
VALUES = {str: "text", int: 3, bool: True}


@pytest.mark.parametrize("field", FIELDS.values(), ids=FIELDS)
def test_a_field_is_everywhere(field: Field) -> None:
    """A field has a meaning, a column in tables and imported curves, a label, a place in docs."""
    assert field.meaning
    assert set(field.modules) <= set(MODULES)
    column = SETTING_COLUMNS[field.name]
    assert BOUNDARIES.body[field.name] is column
    assert SETTINGS_SCHEMA[field.name] == column.dtype
    assert column.nullable == (field.default is None)
    assert field.meaning in column.meaning
    assert label({field.name: VALUES[field.kind]}, FIELDS)
    fields_by_place = facts()
    assert field.name in fields_by_place["FIELDS"]
    assert field.name in fields_by_place["CHOICES"]


def test_fields_are_those_of_the_struct() -> None:
    """The fields are the struct's, in its order, and tables have their columns in that order."""
    assert tuple(FIELDS) == Setting.__struct_fields__
    assert tuple(SETTING_COLUMNS) == ("setting_key", *FIELDS)


def test_axes_sort_and_name_settings() -> None:
    """What studies vary is in sort orders, in the table of models, and in curve files."""
    assert sorted(NESTED) == sorted(AXES)
    assert set(AXES) < set(models.SETTING)
    assert set(AXES) < set(COLUMNS)


def test_no_second_list_of_axes() -> None:
    """No file that shows settings lists what studies vary: it would miss the next axis."""
    trees = ((path, ast.parse(path.read_bytes())) for path in SHOWN)
    for path, node in ((path, node) for path, tree in trees for node in ast.walk(tree)):
        if isinstance(node, ast.Tuple | ast.List | ast.Set | ast.Dict):
            inside = node.keys if isinstance(node, ast.Dict) else node.elts
            texts = {constant.value for constant in inside if isinstance(constant, ast.Constant)}
            assert not texts >= set(AXES), f"{path}:{node.lineno} lists {', '.join(AXES)}"


@pytest.mark.parametrize(
    "path", sorted((PACKAGE / "show/page/assets").glob("*.js")), ids=lambda path: path.name
)
def test_the_page_s_script_names_no_axis(path: Path) -> None:
    """The page's script has the fields of settings as data, by no name of its own."""
    text = path.read_text()
    assert not [name for name in AXES if f"'{name}'" in text or f" {name}:" in text]


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"batch": 1, "context": 0, "routing": "skewed"}, "b = 1, L = 0, skewed"),
        ({"kv_heads": 4, "cuda_graph": True, "gated": None}, "KV heads = 4, CUDA graph"),
        ({"cuda_graph": False, "top_k": None}, ""),
        (
            {"dtype": "bfloat16", "weights": "int8", "kv_dtype": "float8"},
            "bfloat16, weights = int8, cache = float8",
        ),
    ],
)
def test_a_label_tells_what_is_given(values: dict[str, object], text: str) -> None:
    """Numbers stand by their letters, texts alone, flags by name; what is not given is left out.

    Formats stand by what is stored in them.
    """
    assert label(values, FIELDS) == text
