"""FlashAttention 2: rules are read from C++ in its style; other forms are refused."""

from collections.abc import Callable

import pytest
from nearfree.errors import EvidenceError, SourceError
from nearfree.sources.attention import AttentionQuery, Tile
from nearfree.sources.backends import flash_attn
from nearfree.sources.extraction import extract
from nearfree.sources.fetching.cache import Cache
from nearfree.sources.language.reading import Mechanism, mechanism_rule, read_rule
from nearfree.sources.language.rule import Rule
from once import one_in

from sources.backends.flash_attn_snippets import FILES


def changed(path: str, old: str, new: str) -> dict[str, str]:
    """Return the files with one text in one of them replaced."""
    assert old in FILES[path]
    return FILES | {path: FILES[path].replace(old, new)}


def read(files: dict[str, str]) -> dict[str, Rule]:
    return {
        reading.rule: Rule(read_rule(reading, "demo", "1.0"))
        for reading in flash_attn.readings(files)
    }


@pytest.fixture(scope="module")
def rules() -> dict[str, Rule]:
    return read(FILES)


def ask(rules: dict[str, Rule], positions: int, **changes: object) -> Tile:
    query = {"heads": 8, "kv_heads": 2, "head_dim": 80, "context": 1000, "sm": 80, "sms": 100}
    return flash_attn.tile(rules, AttentionQuery(**(query | changes)), positions)  # type: ignore[arg-type]


def test_the_kernel_that_is_launched_gives_the_tile(rules: dict[str, Rule]) -> None:
    """Without splits the tile is that of the kernel for the rounded head dimension."""
    assert ask(rules, 300, head_dim=33, api="dense").tile == 96
    assert ask(rules, 300, head_dim=40, api="dense").tile == 96
    assert ask(rules, 300, head_dim=41, api="dense").tile == 72
    assert ask(rules, 300, api="dense", sm=86).tile == 48


@pytest.mark.slow
def test_splits_change_the_kernel(rules: dict[str, Rule]) -> None:
    """A call that would leave SMs idle is split and has the split kernel's tile."""
    few, many = ask(rules, 24), ask(rules, 300)
    assert (few.path, few.tile, few.tiles) == ("split_kv", 24, 1)
    assert (many.path, many.tile, many.tiles) == ("standard", 72, 5)


def test_the_threshold_is_compared_in_single_precision(rules: dict[str, Rule]) -> None:
    """80 tiles reach 0.8f of 100 SMs in single precision, not in double precision."""
    assert ask(rules, 24 * 9).path == "split_kv"
    assert ask(rules, 24 * 9 + 1).path == "standard"


def test_one_position_is_swapped_with_its_group(rules: dict[str, Rule]) -> None:
    """If heads of a group become rows, one position takes a row for each."""
    one = ask(rules, 1, api="dense")
    assert (one.path, one.rows_per_position, one.tiles) == ("split_kv_swapped", 4, 1)
    assert ask(rules, 2, api="dense").rows_per_position == 1
    assert ask(rules, 1, api="dense", kv_heads=8).rows_per_position == 1


def test_one_position_under_a_window_is_a_row_of_each_head(rules: dict[str, Rule]) -> None:
    """With a window one position is not swapped with its group, and has no splits."""
    query: dict[str, object] = {"api": "varlen", "paged": True, "window": 8}
    one, two = ask(rules, 1, **query), ask(rules, 2, **query)
    assert (one.path, one.tile, one.rows_per_position) == (two.path, two.tile, 1)
    assert one.unsplit
    with pytest.raises(EvidenceError, match="paged caches alone"):
        ask(rules, 1, api="varlen", window=8)


def test_a_function_that_asks_for_no_splits_has_none(rules: dict[str, Rule]) -> None:
    """A field that nothing sets has the value that the structure was cleared to."""
    assert ask(rules, 2, api="varlen").path == "standard"


def test_paging_forces_the_split_kernel(rules: dict[str, Rule]) -> None:
    """An argument of the launch, given or default, is followed."""
    assert ask(rules, 300, paged=True).path == "split_kv"
    assert ask(rules, 300, paged=True, api="varlen").path == "split_kv"


def test_a_call_that_sets_no_number_of_splits_reads_all_keys_in_one_block(
    rules: dict[str, Rule],
) -> None:
    """Paging forces the kernel that could split; the call of lengths sets splits for one position.

    Calls for a cache always set a number, also where it is one.
    """
    assert not ask(rules, 2).unsplit
    assert not ask(rules, 300).unsplit
    assert ask(rules, 2, api="varlen", paged=True).unsplit
    assert ask(rules, 300, api="varlen", paged=True).unsplit


def test_paging_that_the_source_does_not_know_is_refused(rules: dict[str, Rule]) -> None:
    """A call without a page table is refused for a paged cache."""
    with pytest.raises(EvidenceError, match="reads no page table"):
        ask(rules, 2, paged=True, api="dense")


def test_a_missing_fact_is_named(rules: dict[str, Rule]) -> None:
    """A rule that needs a fact is refused without it, by name."""
    with pytest.raises(EvidenceError, match="number of SMs"):
        ask(rules, 2, sms=None)
    with pytest.raises(EvidenceError, match="compute capability"):
        ask(rules, 300, sm=None)


def test_a_device_older_than_its_kernels_is_refused(rules: dict[str, Rule]) -> None:
    """Every function refuses devices before 8.0."""
    with pytest.raises(EvidenceError, match="no kernels for compute capability 75"):
        ask(rules, 2, sm=75)


def test_a_head_dimension_without_kernel_is_refused(rules: dict[str, Rule]) -> None:
    """A head dimension above the largest kernel's is refused."""
    with pytest.raises(EvidenceError, match=r"launches nothing at .*head_dim=81"):
        ask(rules, 300, head_dim=81)


def test_every_branch_quotes_the_source(rules: dict[str, Rule]) -> None:
    """Quotes are lines of the files that were read."""
    for rule in rules.values():
        for branch in rule.rule.branches:
            assert branch.quotes
            for quote in branch.quotes:
                first, last = quote.lines
                lines = " ".join(FILES[quote.file].splitlines()[first - 1 : last])
                assert " ".join(lines.split())[:160] == quote.text


def test_a_comment_is_no_rule() -> None:
    """Code inside comments changes nothing."""
    plain = changed("launch.h", "        // run_flash_fwd<Tr<40, 999, 16, T>, Drop, Causal>", "//")
    assert read(plain)["tile"].rule.meaning == read(FILES)["tile"].rule.meaning


def test_another_number_is_another_meaning() -> None:
    """Another number in the source changes the rule's digest."""
    other = read(changed("launch.h", "Tr<80, 72,", "Tr<80, 64,"))
    assert other["tile"].rule.meaning != read(FILES)["tile"].rule.meaning


@pytest.mark.parametrize("name", ["run_mha_fwd(", "mha_fwd_kvcache(", "mha_varlen_fwd("])
def test_a_renamed_function_is_refused(name: str) -> None:
    """A missing function of a known name is refused."""
    with pytest.raises(SourceError, match="must be defined once"):
        flash_attn.readings(changed("api.cpp", name, f"new_{name}"))


def test_two_definitions_are_refused() -> None:
    """A function that is defined twice is refused."""
    with pytest.raises(SourceError, match=r"api\.cpp:\d+, copy\.cpp:\d+"):
        flash_attn.readings(FILES | {"copy.cpp": FILES["api.cpp"]})


def test_a_function_that_does_not_parse_is_refused() -> None:
    """A syntax error inside a function refuses it."""
    broken = changed(
        "api.cpp", "params.num_splits <= 1 && !force", "params.num_splits <= <= !force"
    )
    with pytest.raises(SourceError, match="does not parse"):
        flash_attn.readings(broken)


def test_an_unknown_construct_is_an_error_where_it_matters() -> None:
    """An unknown construct is refused if the rule depends on it."""
    harmless = changed("launch.h", "auto kernel = &forward<Traits>;", "auto kernel = odd->thing;")
    assert read(harmless)["tile"].rule.meaning == read(FILES)["tile"].rule.meaning
    for old, new in (("cc_minor > 0", "odd->thing(3)"), ("cc_major == 8 &&", "cc_major ^ 8 &&")):
        with pytest.raises(SourceError):
            read(changed("launch.h", old, new))


def test_an_unknown_change_of_a_value_is_an_error() -> None:
    """A call that may change a value that the rule uses is refused."""
    odd = changed(
        "api.cpp", "    const int swapped", "    adjust(&seqlen_q);\n    const int swapped"
    )
    with pytest.raises(SourceError, match="line 48"):
        read(odd)


def test_types_must_agree() -> None:
    """Specialisations that differ in their type only must launch the same kernel."""
    odd = FILES["wide.cu"].replace("wide<cutlass::half_t, true>", "narrow<cutlass::half_t, true>")
    with pytest.raises(SourceError, match="differs between types"):
        flash_attn.readings(FILES | {"wide.cu": odd})


def test_without_specialisations_there_is_no_rule() -> None:
    """The kernel of a head dimension is read from the source, not from names."""
    files = {path: text for path, text in FILES.items() if not path.endswith(".cu")}
    with pytest.raises(SourceError, match="no specialisations"):
        flash_attn.readings(files)


def test_the_grid_is_found_in_the_tree() -> None:
    """The mechanism quotes the ceiling division and the grid that uses it."""
    mechanisms = {mechanism.name: mechanism for mechanism in flash_attn.mechanisms(FILES)}
    assert [quote.lines[0] for quote in mechanisms["grid"].quotes] == [4, 5]
    assert [quote.lines[0] for quote in mechanisms["split_grid"].quotes] == [11, 12]
    assert mechanisms["split_tile"].quotes[0].text == "constexpr static int kBlockM = 24;"


@pytest.mark.parametrize(
    ("old", "new", "gone"),
    [
        ("+ Traits::kBlockM - 1)", ")", "grid"),
        ("dim3 grid(blocks, params.b,", "dim3 grid(params.b, blocks,", "grid"),
        ("ceil_div(params.seqlen_q,", "ceil_div(params.total_q,", "split_grid"),
        ("kernel<<<grid, Traits::kThreads, 0, stream>>>(params);", "go(kernel);", "grid"),
        ("kBlockM = 24", "kBlockM = Dim", "split_tile"),
    ],
)
def test_a_mechanism_that_is_gone_is_absent(old: str, new: str, gone: str) -> None:
    """If the grid's line is gone, the mechanism is absent."""
    mechanisms = {
        mechanism.name: mechanism
        for mechanism in flash_attn.mechanisms(changed("launch.h", old, new))
    }
    assert mechanisms[gone].quotes == ()


@pytest.mark.parametrize(("gone", "positions"), [("grid", 300), ("split_grid", 24)])
def test_a_lost_grid_refuses_the_answers_of_its_kernel(
    rules: dict[str, Rule], gone: str, positions: int
) -> None:
    """If blocks no longer count query tiles, that kernel is refused; others are answered."""
    lost = mechanism_rule(Mechanism(gone, "blocks count tiles"), "demo", "1.0")
    known = {**rules, lost.rule: Rule(lost)}
    with pytest.raises(EvidenceError, match=rf"demo 1\.0: the lines for {gone},"):
        ask(known, positions)
    assert ask(known, 324 - positions) == ask(rules, 324 - positions)


# The real releases.

Fetched = Callable[[str], dict[str, Rule]]
OLDER = ["2.2.0", "2.2.2", "2.3.3", "2.4.1", "2.5.0", "2.5.7", "2.6.3"]
GROUPED = {"heads": 32, "kv_heads": 8, "head_dim": 128}


@pytest.fixture(scope="module")
def fetched(source_cache: Cache) -> Fetched:
    return lambda version: extract("flash-attn", version, cache=source_cache).by_name()


def rows(rules: dict[str, Rule], head_dim: int, sm: int, **changes: object) -> int:
    """Return the tile of a call without splits."""
    return ask(rules, 4096, **(GROUPED | {"head_dim": head_dim, "sm": sm} | changes)).tile


def flips(rules: dict[str, Rule], **changes: object) -> list[int]:
    """Return the last N of the split kernel, and the last N asked for."""
    paths = [(n, ask(rules, n, **(GROUPED | changes)).path) for n in range(2, 450)]
    return [n for n, path in paths if path == "split_kv"][-1:]


@pytest.mark.slow
@pytest.mark.parametrize("version", ["2.7.4.post1", "2.8.3", "2.8.3.post2"])
def test_wide_heads_depend_on_shared_memory(fetched: Fetched, version: str) -> None:
    """Head dimension 256 has 128 rows with 164 KB a SM, else 64."""
    assert [rows(fetched(version), 256, sm) for sm in (80, 90, 86)] == [128, 64, 64]


@pytest.mark.slow
def test_head_dimensions_round_up(fetched: Fetched) -> None:
    """Dimension 160 has a kernel up to 2.7.4.post1, 224 up to 2.6.1; later they are rounded up."""
    assert rows(fetched("2.7.4.post1"), 160, 86) == 64
    assert rows(fetched("2.7.4.post1"), 160, 86, causal=False) == 128
    assert rows(fetched("2.8.0.post2"), 160, 86) == rows(fetched("2.8.0.post2"), 192, 86) == 128
    assert rows(fetched("2.6.1"), 224, 90) == 128
    assert rows(fetched("2.6.2"), 224, 90) == rows(fetched("2.6.2"), 256, 90) == 64
    assert rows(fetched("2.8.3"), 120, 86) == rows(fetched("2.8.3"), 128, 86) == 64
    assert rows(fetched("2.8.3"), 120, 80) == 128
    with pytest.raises(EvidenceError, match="launches nothing"):
        rows(fetched("2.8.3"), 257, 80)


@pytest.mark.slow
@pytest.mark.parametrize("length", [512, 1024, 4096])
def test_where_keys_are_split(fetched: Fetched, length: int) -> None:
    """Keys are split up to the N that fills the SMs, by SMs and requests."""
    rules = fetched("2.8.3")
    a800, h20, h800 = {"sm": 80, "sms": 108}, {"sm": 90, "sms": 78}, {"sm": 90, "sms": 132}
    one = [flips(rules, batch=1, context=length, **device) for device in (a800, h20, h800)]
    four = [flips(rules, batch=4, context=length, **device) for device in (a800, h20, h800)]
    assert (one, four) == ([[320], [192], [384]], [[64], [], [64]])
    assert not any(flips(rules, batch=8, context=length, **device) for device in (a800, h20, h800))


@pytest.mark.slow
def test_which_calls_split(fetched: Fetched) -> None:
    """Short contexts and unpaged ragged calls never split; paged calls use the split kernel."""
    rules = fetched("2.8.3")
    assert flips(rules, batch=1, context=128, sm=90, sms=132) == []
    assert flips(rules, batch=1, context=4096, sm=90, sms=132, api="varlen") == []
    for api in ("kvcache", "varlen"):
        assert flips(rules, context=4096, sm=90, sms=132, api=api, paged=True) == [449]
    one = ask(rules, 1, **(GROUPED | {"sm": 90, "sms": 132, "context": 4096}))
    assert (one.path, one.rows_per_position) == ("split_kv_swapped", 4)


@pytest.mark.slow
@pytest.mark.parametrize("version", OLDER[one_in(3, "flash-attn")])
def test_older_forms_are_read(fetched: Fetched, version: str) -> None:
    """Releases that decide about splits elsewhere, or clear the structure otherwise, are read."""
    rules = fetched(version)
    assert rows(rules, 64, 80) == 128
    assert {"tile", "path", "dense_call", "varlen_call", "kvcache_call"} <= rules.keys()
    assert "absent" not in {rules[f"mechanism_{n}"].value({}).value for n in ("grid", "split_grid")}
