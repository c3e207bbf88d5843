"""Drafts in tokens alone: lookups, cuts, and replay against a loop that really runs."""

from collections.abc import Callable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs
from nearfree.backends.builds import builds
from nearfree.core.candidates import candidates, default_drafting, default_draftings, drafters
from nearfree.core.drafting import (
    Available,
    Drafter,
    Drafting,
    Steps,
    agreed_length,
    lookup_draft,
    replay,
    verified_drafts,
)
from nearfree.errors import ConfigError

SIMPLE = Drafting(drafter="ngram_simple", k=8, ngram_max=2, ngram_min=2)
LOOKUP = Drafting(drafter="prompt_lookup", k=4, ngram_max=2, ngram_min=1)


def from_c(tokens: Sequence[int], n: int, m: int) -> list[int]:
    """Return llama.cpp's draft, line by line as `common_ngram_simple_draft` makes it."""
    past, sampled = list(tokens[:-1]), tokens[-1]
    cur_len = len(past)
    if cur_len <= n + m + 1:
        return []
    pattern = [past[j] for j in range(cur_len - n + 1, cur_len)] + [sampled]
    match_pos = 0
    for j in range(cur_len - n - 1, 0, -1):
        if past[j : j + n] == pattern:
            match_pos = j
            break
    if match_pos == 0:
        return []
    copy_max = min(m, cur_len - (match_pos + n))
    return [] if copy_max < n else past[match_pos + n : match_pos + n + copy_max]


@given(st.lists(st.integers(0, 3), min_size=2, max_size=60), st.integers(1, 4), st.integers(1, 9))
def test_ngram_simple_is_llama_cpps(tokens: list[int], n: int, m: int) -> None:
    """What is looked up and left out is what the engine's own function drafts."""
    drafting = Drafting(drafter="ngram_simple", k=m, ngram_max=n, ngram_min=n)
    offered = lookup_draft(tokens, m, drafting) if len(tokens) > n else ()
    used = verified_drafts(drafting, len(offered), len(tokens), 100)
    assert list(offered[:used]) == from_c(tokens, n, m)


def test_a_lookup_takes_the_longest_n_gram_and_its_latest_place() -> None:
    """Two tokens that stood together count before one; `first` takes the first place instead."""
    tokens = [7, 8, 1, 9, 8, 2, 7, 8, 3, 7, 8]
    assert list(lookup_draft(tokens, 2, LOOKUP)) == [3, 7]
    first = Drafting(drafter="prompt_lookup", k=2, ngram_max=2, ngram_min=1, first=True)
    assert list(lookup_draft(tokens, 2, first)) == [1, 9]
    assert list(lookup_draft([5, 8, 4, 8], 2, LOOKUP)) == [4, 8]
    assert list(lookup_draft([1, 2, 3], 2, LOOKUP)) == []


def test_a_cut_ends_at_the_largest_edge_that_the_draft_fills() -> None:
    """Drafts end where 1 + d rows are an edge, and below the first edge there are none."""
    drafting = Drafting(drafter="prompt_lookup", k=9, ngram_max=1, ngram_min=1, edges=(4, 8))
    assert [verified_drafts(drafting, d, 100, 100) for d in (0, 2, 3, 6, 7, 9)] == [
        0,
        0,
        3,
        3,
        7,
        7,
    ]


def test_a_draft_that_is_cut_is_not_filled_up() -> None:
    """Where drafts are padded each step has 1 + K rows; cut to edges, those of its own draft."""
    padded = structs.replace(LOOKUP, k=8, padded=True)
    offered = Available(prompt_tokens=20, longest=8, drafted=(8, 8, 1, 8, 8), agreed=(0,) * 5)
    assert replay(offered, padded, 6, 20).rows == (9,) * 5
    cut = structs.replace(padded, edges=(1, 4))
    assert replay(offered, cut, 6, 20).rows == (4, 4, 1, 4, 4)


def a_model(seed: int) -> Callable[[Sequence[int]], int]:
    """Return a greedy model: a token that the last two and their number decide, 0 ends a text."""

    def after(tokens: Sequence[int]) -> int:
        return (tokens[-1] * 3 + tokens[-2] * 5 + seed + len(tokens) // 7) % 6

    return after


def run(
    model: Callable[[Sequence[int]], int], prompt: list[int], drafting: Drafting, limit: int
) -> tuple[list[int], Steps]:
    """Return the output of a loop that drafts, verifies each draft by the model, and its steps."""
    tokens = [model(prompt)]
    rows, accepted = [], []
    while len(tokens) < limit and tokens[-1]:
        known = [*prompt, *tokens]
        offered = lookup_draft(known, drafting.k, drafting) if drafting.k else ()
        drafts = offered[: verified_drafts(drafting, len(offered), len(known), limit - len(tokens))]
        chosen: list[int] = []
        for place in range(len(drafts) + 1):
            chosen.append(model([*known, *drafts[:place]]))
            if place == len(drafts) or chosen[-1] != drafts[place] or not chosen[-1]:
                break
        rows.append(1 + len(drafts))
        accepted.append(agreed_length(drafts, chosen))
        tokens += chosen
    return tokens, Steps(rows=tuple(rows), accepted=tuple(accepted))


def traced(prompt: list[int], output: list[int], drafting: Drafting, longest: int) -> Available:
    """Return what a lookup offers over an output."""
    offers = [
        lookup_draft([*prompt, *output[:done]], longest, drafting) for done in range(1, len(output))
    ]
    return Available(
        prompt_tokens=len(prompt),
        longest=longest,
        drafted=tuple(map(len, offers)),
        agreed=tuple(agreed_length(each, output[at:]) for at, each in enumerate(offers, start=1)),
    )


@settings(max_examples=300)
@given(
    seed=st.integers(0, 5),
    prompt=st.lists(st.integers(1, 5), min_size=5, max_size=30),
    k=st.integers(1, 9),
    drafter=st.sampled_from(("prompt_lookup", "ngram_simple")),
    n=st.integers(1, 3),
    edges=st.sampled_from(((), (2, 4, 8))),
    limit=st.integers(2, 40),
)
def test_a_replay_is_the_real_run(
    *,
    seed: int,
    prompt: list[int],
    k: int,
    drafter: Drafter,
    n: int,
    edges: tuple[int, ...],
    limit: int,
) -> None:
    """One run without drafts gives the steps of every K: the same output, rows and acceptances."""
    model = a_model(seed)
    plain, alone = run(model, prompt, Drafting(), limit)
    assert alone == replay(None, Drafting(), len(plain), limit)
    drafting = Drafting(
        drafter=drafter,
        k=k,
        ngram_max=n,
        ngram_min=n if drafter == "ngram_simple" else 1,
        edges=edges,
    )
    output, steps = run(model, prompt, drafting, limit)
    assert output == plain
    assert replay(traced(prompt, plain, drafting, 9), drafting, len(plain), limit) == steps


def test_a_trace_answers_up_to_its_longest_draft() -> None:
    """A longer K than was traced is refused: what it would offer is not known."""
    known = traced([1, 2, 1, 2, 1], [2, 1, 2], LOOKUP, 3)
    with pytest.raises(ConfigError, match="drafts of 4 tokens were requested of a trace with 3"):
        replay(known, LOOKUP, 3, 9)


@pytest.mark.parametrize(
    ("fields", "what"),
    [
        ({"k": 3}, "none drafts 3 tokens"),
        ({"drafter": "draft_model"}, "draft_model drafts 0 tokens"),
        ({"drafter": "prompt_lookup", "k": 1}, "n-grams of 0 to 0"),
        ({"drafter": "draft_model", "k": 1, "ngram_max": 2, "ngram_min": 1}, "n-grams of 1 to 2"),
        ({"drafter": "ngram_simple", "k": 1, "ngram_max": 1, "ngram_min": 2}, "n-grams of 2 to 1"),
        (
            {"drafter": "ngram_mod", "k": 4, "ngram_max": 2, "ngram_min": 2, "edges": (4,)},
            r"drafts of ngram_mod are cut at \[4\] rows",
        ),
    ],
)
def test_a_setting_that_cannot_be_is_refused(fields: dict[str, object], what: str) -> None:
    """A drafter, its K and its n-grams belong together."""
    with pytest.raises(ConfigError, match=what):
        Drafting(**fields)  # type: ignore[arg-type]


def test_candidates_leave_out_what_drafts_nothing() -> None:
    """ngram_simple takes no draft that is shorter than its n-gram, so such K are not weighed."""
    found = candidates(drafters("llama_cpp", "prompt_lookup"), (1, 3))
    simple = [each for each in found if each.drafter in ("none", "ngram_simple")]
    assert {(each.ngram_max, each.k) for each in simple} == {(0, 0), (1, 1), (1, 3), (2, 3), (3, 3)}
    assert {each.k for each in found if each.drafter == "ngram_map_k"} == {1, 3}


def test_a_default_is_weighed_with_its_own_k_alone() -> None:
    """Where K stands, no other one is tried; where it is open, each is."""
    default = Drafting(drafter="ngram_cache", k=8, ngram_max=4, ngram_min=1)
    assert candidates(drafters("llama_cpp", "prompt_lookup", (default,)), (1, 3))[-1] == default
    assert candidates((default,), (1, 3)) == [Drafting(), default]
    assert drafters("llama_cpp", "none", (default,)) == ()


def test_a_default_is_what_the_release_says() -> None:
    """Lengths come from the release's own options; without them there is no default."""
    said = {"draft.n_max": 3, "ngram_simple.size_n": 12, "ngram_simple.size_m": 48}
    lookup = default_drafting(said, "prompt_lookup")
    assert lookup == Drafting(drafter="ngram_simple", k=48, ngram_max=12, ngram_min=12)
    assert default_drafting(said, "draft_model") == Drafting(drafter="draft_model", k=3)
    assert default_drafting({}, "prompt_lookup") is None
    assert default_drafting(said, "none") is None


def test_each_type_has_its_default() -> None:
    """What the pinned releases say, type by type; one that drafts otherwise is not taken."""
    for build in builds("llama_cpp").values():
        simple, map_k, map_k4v, mod, cache = default_draftings(build.speculation)
        assert [(each.label, each.k) for each in (simple, map_k, map_k4v)] == [
            ("ngram_simple 12", 48), ("ngram_map_k 12", 48), ("ngram_map_k4v 12", 48),
        ]  # fmt: skip
        assert (mod.label, mod.k) == ("ngram_mod 24 from 48", 64)
        assert (cache.label, cache.k) == ("ngram_cache 1-4", 8)
        assert default_drafting(build.speculation, "prompt_lookup") == simple
        hits = {**build.speculation, "ngram_map_k4v.min_hits": 2}
        assert map_k4v not in default_draftings(hits)
    assert default_draftings({}) == ()


def test_what_remembers_has_a_trace_for_each_k() -> None:
    """Its drafts depend on how long the earlier ones were, so none answers for another K."""
    one = Drafting(drafter="ngram_map_k", k=4, ngram_max=2, ngram_min=2)
    other = structs.replace(one, k=7, threads=2, repack=False)
    assert one.source == one
    assert other.source == structs.replace(one, k=7)
    assert one.kin == other.kin


def test_a_source_keeps_how_it_drafts() -> None:
    """What one trace answers for differs by K, cuts, threads and storage, and by nothing else."""
    one = Drafting(drafter="prompt_lookup", k=1, ngram_max=2, ngram_min=1, first=True, padded=True)
    longer = structs.replace(one, k=15, edges=(8, 16), threads=2, repack=False)
    assert longer.source == one
    assert structs.replace(longer, padded=False).source != one
