"""Kernels and tiles of latent attention: rows of a frame have those of single questions."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from nearfree.core.modules.mla import MlaQuestion
from nearfree.derive.work_model.mla import mla_tiles
from nearfree.errors import NearfreeError
from nearfree.sources.answers.latent import LatentCall

from derive.work_model.forms import MLA, facts_of

GRID = [1, 2, 64, 200]
QUESTIONS = st.fixed_dictionaries(
    {
        "backend": st.sampled_from(["vllm_mla", "sglang_mla"]),
        "backend_version": st.sampled_from(["0.20.2", "0.5.14", "0.33.0"]),
        "platform": st.sampled_from(["h100", "b200", "a100"]),
        "heads": st.sampled_from([8, 16, 128]),
        "dtype": st.sampled_from(["bfloat16", "float8"]),
        "kv_dtype": st.sampled_from([None, "bfloat16", "float8"]),
        "context": st.sampled_from([0, 4096]),
        "selected": st.sampled_from([None, 2048]),
        "api": st.sampled_from([None, "absorbed", "naive"]),
    }
)


def one_by_one(question: dict[str, Any], sm: int) -> list[tuple[float, ...]] | str:
    """Return the tile's sizes at each N for one question alone, or why they are unknown."""
    named = {name: question[name] for name in MlaQuestion.__struct_fields__ if name in question}
    try:
        tiles = LatentCall.of(MlaQuestion(**{**named, "sm": sm})).tiles(GRID)
    except NearfreeError as error:
        return error.what
    return [
        (
            tile.rows,
            tile.rows_per_position,
            1 if tile.shared else question["heads"],
            tile.splits,
            tile.path == "naive",
        )
        for tile in tiles
    ]


@given(QUESTIONS)
def test_rows_have_the_tiles_of_their_questions(asked: dict[str, Any]) -> None:
    """Each row has the tile or refusal of its question, with one row axis or one per head.

    The format of the cache decides, where it differs from the element type.
    """
    question = {**MLA, "kernel": None, **asked}
    facts = facts_of(question)
    sizes, (refused,) = mla_tiles(facts, np.array([GRID], dtype=float))
    expected = one_by_one(question, facts["sm"].item())
    if refused is None:
        tiles = [
            tuple(of) for of in zip(*(size[0].tolist() for size in sizes.values()), strict=True)
        ]
        assert tiles == expected
    else:
        assert refused == expected


@pytest.mark.parametrize(("api", "axes"), [("absorbed", 1), ("naive", 16)])
def test_heads_of_naive_attention_have_a_row_axis_each(api: str, axes: int) -> None:
    """Absorbed, sixteen heads share one row axis."""
    facts = facts_of({**MLA, "context": 0, "api": api, "platform": "h100"})
    sizes, refused = mla_tiles(facts, np.array([GRID], dtype=float))
    assert refused == [None]
    assert sizes["row_axes"].tolist() == [[axes] * len(GRID)]
    assert sizes["rows_per_position"].tolist() == [[16 / axes] * len(GRID)]
