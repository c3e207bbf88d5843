"""Drafts in tokens alone: lookups, cuts, and replay against a loop that runs a model."""

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


def llama_cpp_draft(tokens: Sequence[int], n: int, m: int) -> list[int]:
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
def test_ngram_simple_drafts_as_llama_cpp(tokens: list[int], n: int, m: int) -> None:
    """Drafts, and their absence, are those of the engine's own function."""
    drafting = Drafting(drafter="ngram_simple", k=m, ngram_max=n, ngram_min=n)
    offered = lookup_draft(tokens, m, drafting) if len(tokens) > n else ()
    used = verified_drafts(drafting, len(offered), len(tokens), 100)
    assert list(offered[:used]) == llama_cpp_draft(tokens, n, m)


def test_a_lookup_takes_the_longest_n_gram_and_its_latest_place() -> None:
    """A match of two tokens goes before one of one; `first` takes the first place instead."""
    tokens = [7, 8, 1, 9, 8, 2, 7, 8, 3, 7, 8]
    assert list(lookup_draft(tokens, 2, LOOKUP)) == [3, 7]
    first_place = Drafting(drafter="prompt_lookup", k=2, ngram_max=2, ngram_min=1, first=True)
    assert list(lookup_draft(tokens, 2, first_place)) == [1, 9]
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
    """Padded drafts give 1 + K rows a step; drafts cut to edges give rows of their length."""
    padded = structs.replace(LOOKUP, k=8, padded=True)
    offered = Available(prompt_tokens=20, longest=8, drafted=(8, 8, 1, 8, 8), agreed=(0,) * 5)
    assert replay(offered, padded, 6, 20).rows == (9,) * 5
    cut = structs.replace(padded, edges=(1, 4))
    assert replay(offered, cut, 6, 20).rows == (4, 4, 1, 4, 4)


def greedy_model(seed: int) -> Callable[[Sequence[int]], int]:
    """Return a greedy model: the last two tokens and their number give the next; 0 ends a text."""

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
        text = [*prompt, *tokens]
        offered_drafts = lookup_draft(text, drafting.k, drafting) if drafting.k else ()
        drafts = offered_drafts[
            : verified_drafts(drafting, len(offered_drafts), len(text), limit - len(tokens))
        ]
        chosen: list[int] = []
        for place in range(len(drafts) + 1):
            chosen.append(model([*text, *drafts[:place]]))
            if place == len(drafts) or chosen[-1] != drafts[place] or not chosen[-1]:
                break
        rows.append(1 + len(drafts))
        accepted.append(agreed_length(drafts, chosen))
        tokens += chosen
    return tokens, Steps(rows=tuple(rows), accepted=tuple(accepted))


def traced(prompt: list[int], output: list[int], drafting: Drafting, longest: int) -> Available:
    """Return what a lookup offers over an output."""
    offers = [
        lookup_draft([*prompt, *output[:length]], longest, drafting)
        for length in range(1, len(output))
    ]
    return Available(
        prompt_tokens=len(prompt),
        longest=longest,
        drafted=tuple(map(len, offers)),
        agreed=tuple(
            agreed_length(drafts, output[at:]) for at, drafts in enumerate(offers, start=1)
        ),
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
    model = greedy_model(seed)
    output_without_drafts, steps_without_drafts = run(model, prompt, Drafting(), limit)
    assert steps_without_drafts == replay(None, Drafting(), len(output_without_drafts), limit)
    drafting = Drafting(
        drafter=drafter,
        k=k,
        ngram_max=n,
        ngram_min=n if drafter == "ngram_simple" else 1,
        edges=edges,
    )
    output, steps = run(model, prompt, drafting, limit)
    assert output == output_without_drafts
    assert (
        replay(
            traced(prompt, output_without_drafts, drafting, 9),
            drafting,
            len(output_without_drafts),
            limit,
        )
        == steps
    )


def test_a_trace_holds_up_to_its_longest_draft() -> None:
    """A K longer than the traced one is refused: its drafts are not known."""
    trace = traced([1, 2, 1, 2, 1], [2, 1, 2], LOOKUP, 3)
    with pytest.raises(ConfigError, match="drafts of 4 tokens were requested of a trace with 3"):
        replay(trace, LOOKUP, 3, 9)


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
def test_an_inconsistent_setting_is_refused(fields: dict[str, object], what: str) -> None:
    """A drafter, its K and its n-grams must be consistent."""
    with pytest.raises(ConfigError, match=what):
        Drafting(**fields)  # type: ignore[arg-type]


def test_candidates_leave_out_settings_that_never_draft() -> None:
    """ngram_simple drafts nothing shorter than its n-gram, so such K are no candidates."""
    draftings = candidates(drafters("llama_cpp", "prompt_lookup"), (1, 3))
    simple = [drafting for drafting in draftings if drafting.drafter in ("none", "ngram_simple")]
    assert {(drafting.ngram_max, drafting.k) for drafting in simple} == {
        (0, 0),
        (1, 1),
        (1, 3),
        (2, 3),
        (3, 3),
    }
    assert {drafting.k for drafting in draftings if drafting.drafter == "ngram_map_k"} == {1, 3}


def test_a_default_has_its_own_k_alone() -> None:
    """A K that is given is the only one tried; where none is given, each is."""
    default = Drafting(drafter="ngram_cache", k=8, ngram_max=4, ngram_min=1)
    assert candidates(drafters("llama_cpp", "prompt_lookup", (default,)), (1, 3))[-1] == default
    assert candidates((default,), (1, 3)) == [Drafting(), default]
    assert drafters("llama_cpp", "none", (default,)) == ()


def test_a_default_has_the_lengths_of_the_release() -> None:
    """Lengths come from the release's own options; without them there is no default."""
    options = {"draft.n_max": 3, "ngram_simple.size_n": 12, "ngram_simple.size_m": 48}
    lookup = default_drafting(options, "prompt_lookup")
    assert lookup == Drafting(drafter="ngram_simple", k=48, ngram_max=12, ngram_min=12)
    assert default_drafting(options, "draft_model") == Drafting(drafter="draft_model", k=3)
    assert default_drafting({}, "prompt_lookup") is None
    assert default_drafting(options, "none") is None


def test_each_type_has_its_default() -> None:
    """The defaults of the pinned releases by type; a release that drafts otherwise has none."""
    for build in builds("llama_cpp").values():
        simple, map_k, map_k4v, mod, cache = default_draftings(build.speculation)
        assert [(drafting.label, drafting.k) for drafting in (simple, map_k, map_k4v)] == [
            ("ngram_simple 12", 48), ("ngram_map_k 12", 48), ("ngram_map_k4v 12", 48),
        ]  # fmt: skip
        assert (mod.label, mod.k) == ("ngram_mod 24 from 48", 64)
        assert (cache.label, cache.k) == ("ngram_cache 1-4", 8)
        assert default_drafting(build.speculation, "prompt_lookup") == simple
        hits = {**build.speculation, "ngram_map_k4v.min_hits": 2}
        assert map_k4v not in default_draftings(hits)
    assert default_draftings({}) == ()


def test_a_drafter_with_memory_has_a_trace_for_each_k() -> None:
    """Its drafts depend on the lengths of earlier ones, so a trace holds for one K alone."""
    drafting = Drafting(drafter="ngram_map_k", k=4, ngram_max=2, ngram_min=2)
    other_drafting = structs.replace(drafting, k=7, threads=2, repack=False)
    assert drafting.source == drafting
    assert other_drafting.source == structs.replace(drafting, k=7)
    assert drafting.kin == other_drafting.kin


def test_a_source_keeps_how_it_drafts() -> None:
    """Settings of one trace differ by K, cuts, threads and storage, and by nothing else."""
    drafting = Drafting(
        drafter="prompt_lookup", k=1, ngram_max=2, ngram_min=1, first=True, padded=True
    )
    longer = structs.replace(drafting, k=15, edges=(8, 16), threads=2, repack=False)
    assert longer.source == drafting
    assert structs.replace(longer, padded=False).source != drafting
