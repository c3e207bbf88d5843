"""FlashAttention 3: rows, splits and packing are read from C++ in its style, or refused."""

from collections.abc import Callable

import pytest
from nearfree.errors import EvidenceError, SourceError
from nearfree.sources.attention import AttentionQuery, Tile
from nearfree.sources.backends import flash_attn_3
from nearfree.sources.extraction import extract
from nearfree.sources.fetching.cache import Cache
from nearfree.sources.language.reading import Mechanism, mechanism_rule, read_rule
from nearfree.sources.language.rule import Rule
from once import one_in

pytestmark = pytest.mark.slow
"""Reading its rules takes seconds, even from snippets: they have hundreds of ways."""

TILE = """
constexpr std::tuple<int, int> tile_size_fwd_sm90(int d, int dv, bool causal, bool paged=false) {
    if (d <= 50) { return {96, causal || paged ? 32 : 48}; }
    // return {128, 64};
    return {64, 16};
}
constexpr std::tuple<int, int> tile_size_fwd_sm8x(bool small, int d, int dv, bool causal) {
    return {small ? 32 : 48, 16};
}
"""
HEURISTICS = """
inline bool should_pack_gqa(bool ragged, int seqlen_q, int group, int rows) {
    if (ragged) { return true; }
    auto up = [](int a, int b) { return (a + b - 1) / b * b; };
    float apart = float(seqlen_q) / float(up(seqlen_q, rows));
    float packed = float(seqlen_q * group) / float(up(seqlen_q * group, rows));
    return apart < 0.9 * packed;
}
inline int num_splits_heuristic(int work, int sms, int blocks, int most) {
    if (work >= 0.8f * sms || blocks <= 4) { return 1; }
    int best = 1;
    for (int n = 1; n <= most; n++) { if (work * n <= sms) { best = n; } }
    return best;
}
"""
SWITCH = """
#define FLAG(COND, NAME, ...) \\
  [&] { if (COND) { constexpr static bool NAME = true; return __VA_ARGS__(); } \\
        else { constexpr static bool NAME = false; return __VA_ARGS__(); } }()
#define ARCH(A, NAME, ...) \\
  [&] { if (A < 90) { constexpr static int NAME = 80; return __VA_ARGS__(); } \\
        else { constexpr static int NAME = 90; return __VA_ARGS__(); } }()
"""
LAUNCH = """
template <int Arch, int D, int DV, bool Causal, bool Split, bool PagedKVNonTMA, bool PackGQA>
void run_flash_fwd(Params &params, Stream stream) {
    using Tag = std::conditional_t<Arch >= 90, New, Old>;
    static constexpr std::tuple<int, int> now = tile_size_fwd_sm90(D, DV, Causal, PagedKVNonTMA);
    static constexpr std::tuple<int, int> old = tile_size_fwd_sm8x(Arch == 86, D, DV, Causal);
    static constexpr int kBlockM = Arch >= 90 ? std::get<0>(now) : std::get<0>(old);
    int packed = !PackGQA ? 1 : cutlass::ceil_div(params.h, params.h_k);
    int blocks = cutlass::ceil_div(params.seqlen_q * packed, get<0>(Shape{}));
    dim3 grid_dims = Kernel::get_grid_shape(blocks);
}
template <int Arch, int D, int DV, bool Split, bool PagedKVNonTMA, bool PackGQA>
void run_mha_fwd_(Params &params, Stream stream) {
    FLAG(params.is_causal, Causal, [&] {
        run_flash_fwd<Arch, D, DV, Causal, Split, PagedKVNonTMA, PackGQA>(params, stream);
    });
}
"""
API = """
template <int Arch, bool Split, bool PagedKVNonTMA, bool PackGQA>
void run_mha_fwd_constexpr(Params &params, Stream stream) {
    #ifndef WITHOUT_NARROW
    if (params.d <= 50) {
        return run_mha_fwd_<Arch, 50, 50, Split, PagedKVNonTMA, PackGQA>(params, stream);
    }
    #endif
    if (params.d <= 100) {
        return run_mha_fwd_<Arch, 100, 100, Split, PagedKVNonTMA, PackGQA>(params, stream);
    }
}
void run_mha_fwd(Params &params, Stream stream) {
    ARCH(params.arch, Arch, [&] {
        FLAG(params.num_splits > 1, Split, [&] {
            FLAG(params.page_table && !params.pagedkv_tma, PagedKVNonTMA, [&] {
                FLAG(params.pack_gqa, Pack, [&] {
                    static constexpr bool PackGQA = Pack || Arch < 90 || PagedKVNonTMA || Split;
                    run_mha_fwd_constexpr<Arch, Split, PagedKVNonTMA, PackGQA>(params, stream);
                });
            });
        });
    });
}
inline bool get_pagedkv_tma(Params const& params) {
    if (params.arch < 90 || !params.page_table) { return false; }
    auto sizes = tile_size_fwd_sm90(params.d, params.dv, params.is_causal);
    return params.page_size % std::get<1>(sizes) == 0
        && params.seqlen_q * (params.h / params.h_k) > std::get<0>(sizes);
}
inline bool get_pack_gqa(Params const& params) {
    if (params.arch < 90 || (params.page_table && !params.pagedkv_tma) || params.num_splits > 1) {
        return true;
    }
    if (params.h == params.h_k) { return false; }
    auto sizes = tile_size_fwd_sm90(params.d, params.dv, params.is_causal);
    return should_pack_gqa(params.cu_seqlens_q, params.seqlen_q, params.h / params.h_k,
                           std::get<0>(sizes));
}
inline int get_num_splits(Params const& params) {
    auto sizes = tile_size_fwd_sm90(params.d, params.dv, params.is_causal,
                                    params.page_table && !params.pagedkv_tma);
    int const rows = params.seqlen_q * (params.h / params.h_k);
    int const work = params.h_k * ((rows + std::get<0>(sizes) - 1) / std::get<0>(sizes));
    int const blocks = (params.seqlen_k + std::get<1>(sizes) - 1) / std::get<1>(sizes);
    return num_splits_heuristic((params.dynamic ? 1 : params.b) * work, params.num_sm, blocks, 64);
}
void set_params_fprop(Params &params, int b, int seqlen_q, int seqlen_k, int h, int h_k, int d,
                      void *cu_seqlens_q_d, void *cu_seqlens_k_d, void *seqused_k, int right) {
    params = {};
    params.b = b;
    params.seqlen_q = seqlen_q;
    params.seqlen_k = seqlen_k;
    params.h = h;
    params.h_k = h_k;
    params.d = d;
    params.cu_seqlens_q = static_cast<int *>(cu_seqlens_q_d);
    params.cu_seqlens_k = static_cast<int *>(cu_seqlens_k_d);
    params.seqused_k = static_cast<int *>(seqused_k);
    params.is_causal = right == 0;
    params.is_local = false;
    params.arch = at::cuda::getCurrentDeviceProperties()->major * 10
        + at::cuda::getCurrentDeviceProperties()->minor;
    params.num_sm = at::cuda::getCurrentDeviceProperties()->multiProcessorCount;
}
std::vector<at::Tensor> mha_fwd(at::Tensor q, at::Tensor k, at::Tensor v,
                                bool is_causal, int64_t window_size_right, int64_t num_splits) {
    bool const paged = page_table_.has_value();
    bool const ragged = cu_seqlens_q_.has_value();
    auto const sizes = q.sizes();
    const int batch_size = !ragged ? sizes[0] : cu_seqlens_q.size(0) - 1;
    int seqlen_q = !ragged ? sizes[1] : max_seqlen_q_.value();
    int const page_size = !paged ? 1 : k.size(1);
    int const seqlen_k = paged ? page_table.size(1) * page_size
        : (cu_seqlens_k_.has_value() ? max_seqlen_k_.value() : k.size(1));
    if (is_causal) { window_size_right = 0; }
    Params params;
    set_params_fprop(params, batch_size, seqlen_q, seqlen_k, q.size(-2), k.size(-2), q.size(-1),
                     !ragged ? nullptr : cu_seqlens_q.data_ptr(),
                     !cu_seqlens_k_.has_value() ? nullptr : cu_seqlens_k.data_ptr(),
                     seqused_k_.has_value() ? seqused_k_.value().data_ptr() : nullptr,
                     window_size_right);
    params.dv = v.size(-1);
    if (paged) { params.page_table = page_table.data_ptr<int>(); }
    params.page_size = page_size;
    params.dynamic = ragged || seqused_k_.has_value();
    params.pagedkv_tma = get_pagedkv_tma(params);
    params.num_splits = num_splits <= 0 ? get_num_splits(params) : num_splits;
    params.pack_gqa = pack_gqa_.has_value() ? pack_gqa_.value() : get_pack_gqa(params);
    run_mha_fwd(params, stream);
    return {q};
}
"""
FILES = {
    "api.cpp": API,
    "heuristics.h": HEURISTICS,
    "launch.h": LAUNCH,
    "switch.h": SWITCH,
    "tile.h": TILE,
}


def changed(path: str, old: str, new: str) -> dict[str, str]:
    """Return the files with one text in one of them replaced."""
    assert old in FILES[path]
    return FILES | {path: FILES[path].replace(old, new)}


def read(files: dict[str, str]) -> dict[str, Rule]:
    return {
        reading.rule: Rule(read_rule(reading, "demo", "1.0"))
        for reading in flash_attn_3.readings(files)
    }


@pytest.fixture(scope="module")
def rules() -> dict[str, Rule]:
    return read(FILES)


def ask(rules: dict[str, Rule], positions: int, **changes: object) -> Tile:
    query = {"heads": 8, "kv_heads": 2, "head_dim": 50, "context": 2000, "sm": 90, "sms": 100}
    query |= {"api": "dense"} | changes
    return flash_attn_3.tile(rules, AttentionQuery(**query), positions)  # type: ignore[arg-type]


def test_rows_come_from_the_architecture_and_the_head_dimension(rules: dict[str, Rule]) -> None:
    """The launch's constants select one of two tables, by the rounded head dimension."""
    assert [ask(rules, 9, head_dim=d).tile for d in (33, 50, 51, 100)] == [96, 96, 64, 64]
    assert ask(rules, 9, sm=80).tile == 48


def test_packed_heads_share_a_tile(rules: dict[str, Rule]) -> None:
    """With packed heads a position takes a row per head of its group."""
    few, full = ask(rules, 9, context=100), ask(rules, 96, context=100)
    assert (few.path, few.rows_per_position, few.tiles) == ("standard+pack_gqa", 4, 1)
    assert (full.path, full.rows_per_position, full.tiles) == ("standard", 1, 1)
    assert ask(rules, 25, context=100).tiles == 2
    assert ask(rules, 9, context=100, kv_heads=8).rows_per_position == 1


def test_splits_pack(rules: dict[str, Rule]) -> None:
    """Splits and old architectures always pack; four blocks of keys are never split."""
    assert ask(rules, 96).path == "split_kv+pack_gqa"
    assert ask(rules, 96, context=128, sm=80).path == "standard+pack_gqa"
    assert [ask(rules, 96, context=n, causal=True).path for n in (128, 129)] == [
        "standard",
        "split_kv+pack_gqa",
    ]


def test_requests_count_unless_lengths_are_counted_for_each(rules: dict[str, Rule]) -> None:
    """A dense call counts all requests; a call with lengths counts one."""
    assert ask(rules, 96, batch=50).path == "standard"
    assert ask(rules, 96, batch=50, api="kvcache").path == "split_kv+pack_gqa"
    assert ask(rules, 96, context=100, api="varlen").path == "standard+pack_gqa"


def test_the_page_size_is_asked_for_where_it_matters(rules: dict[str, Rule]) -> None:
    """Beyond one tile the answer depends on the page size, which is then needed."""
    assert ask(rules, 24, paged=True, api="kvcache").rows_per_position == 4
    with pytest.raises(EvidenceError, match="page size"):
        ask(rules, 25, paged=True, api="kvcache")
    with pytest.raises(EvidenceError, match="no paged cache"):
        ask(rules, 2, paged=True)


def test_a_missing_fact_is_named(rules: dict[str, Rule]) -> None:
    """A rule that needs a fact is refused without it, by name."""
    with pytest.raises(EvidenceError, match="number of SMs"):
        ask(rules, 2, sms=None)
    with pytest.raises(EvidenceError, match="compute capability"):
        ask(rules, 2, sm=None)
    with pytest.raises(EvidenceError, match="launches nothing at d=101"):
        ask(rules, 2, head_dim=101)


def test_a_comment_is_no_rule(rules: dict[str, Rule]) -> None:
    """Code inside comments and inactive conditions changes nothing."""
    plain = read(changed("tile.h", "    // return {128, 64};\n", ""))
    dead = "#ifdef NARROW\n    return {8, 8};\n#endif\n    return {64, 16};"
    other = read(changed("tile.h", "    return {64, 16};", dead))
    meanings = [
        {n: r.rule.meaning for n, r in variant.items()} for variant in (plain, other, rules)
    ]
    assert meanings[0] == meanings[1] == meanings[2]


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("tile.h", "tile_size_fwd_sm90("),
        ("tile.h", "tile_size_fwd_sm8x("),
        ("heuristics.h", "num_splits_heuristic("),
        ("api.cpp", " run_mha_fwd("),
        ("api.cpp", " mha_fwd("),
    ],
)
def test_a_renamed_function_is_refused(path: str, name: str) -> None:
    """A release without a known function is refused."""
    with pytest.raises(SourceError, match="must be defined once"):
        flash_attn_3.readings(changed(path, name, f" new_{name.strip()}"))


def test_two_definitions_are_refused() -> None:
    """A function that is defined twice is refused."""
    with pytest.raises(SourceError, match="must be defined once"):
        flash_attn_3.readings(FILES | {"copy.h": TILE})


def test_a_function_that_does_not_parse_is_refused() -> None:
    """A syntax error inside a function refuses it; one in a type alias does not."""
    with pytest.raises(SourceError, match="does not parse"):
        flash_attn_3.readings(changed("tile.h", "if (d <= 50)", "if (d <= <= 50)"))


def test_an_unknown_construct_is_an_error() -> None:
    """An unknown construct that the rule depends on is refused."""
    with pytest.raises(SourceError):
        read(changed("tile.h", "if (d <= 50)", "if (odd->thing(d))"))
    with pytest.raises(SourceError):
        read(changed("heuristics.h", "n++", "n += 2"))


def test_the_grid_is_found_in_the_tree() -> None:
    """The mechanism quotes the packed heads and the ceiling division, else it is absent."""
    (mechanism,) = flash_attn_3.mechanisms(FILES)
    assert [quote.lines[0] for quote in mechanism.quotes] == [8, 9]
    for old, new in (("* packed,", "* 2,"), ("!PackGQA ? 1 :", "true ? 1 :")):
        (gone,) = flash_attn_3.mechanisms(changed("launch.h", old, new))
        assert gone.quotes == ()


def test_a_lost_grid_refuses_the_answer(rules: dict[str, Rule]) -> None:
    """If blocks no longer count rows of packed heads, nothing is answered."""
    lost = mechanism_rule(Mechanism("grid", "blocks count rows"), "demo", "1.0")
    with pytest.raises(EvidenceError, match=r"demo 1\.0: the lines for grid,"):
        ask({**rules, lost.rule: Rule(lost)}, 9)


# The real releases.

Fetched = Callable[[str], dict[str, Rule]]
H800 = {"heads": 32, "kv_heads": 8, "head_dim": 128, "sm": 90, "sms": 132}


@pytest.fixture(scope="module")
def fetched(source_cache: Cache) -> Fetched:
    return lambda version: extract("xformers", version, cache=source_cache).by_name()


@pytest.mark.parametrize("version", ["0.0.34", *["0.0.31"][one_in(4, "xformers")]])
def test_the_rows_of_real_releases(fetched: Fetched, version: str) -> None:
    """192 rows up to 96 dimensions, else 128; 128 on older architectures."""
    release = fetched(version)
    dims = (64, 96, 128, 192, 256)
    assert [ask(release, 8, **(H800 | {"head_dim": d})).tile for d in dims] == [192] * 2 + [128] * 3
    assert {ask(release, 8, **(H800 | {"head_dim": d, "sm": 80})).tile for d in dims} == {128}
    with pytest.raises(EvidenceError, match="launches nothing"):
        ask(release, 8, **(H800 | {"head_dim": 257}))


def test_packing_divides_the_boundary(fetched: Fetched) -> None:
    """With four heads a group, a tile holds a quarter of its rows in positions."""
    release = fetched("0.0.34")
    for api in ("dense", "kvcache", "varlen"):
        tiles = [ask(release, n, **(H800 | {"context": 4096, "api": api})) for n in (32, 33)]
        assert [tile.rows_per_position for tile in tiles] == [4, 4]
        assert [tile.tiles for tile in tiles] == [1, 2]


def test_few_blocks_of_keys_are_not_split(fetched: Fetched) -> None:
    """Up to four blocks of keys there is one split: 512 keys at 128 dimensions."""
    release = fetched("0.0.34")
    paths = [ask(release, 8, **(H800 | {"context": n})).path for n in (512, 513)]
    assert paths == ["standard+pack_gqa", "split_kv+pack_gqa"]


@pytest.mark.parametrize("version", ["0.0.30", "0.0.35"])
def test_releases_without_the_rule_are_refused(fetched: Fetched, version: str) -> None:
    """A release without these files, or with others, is refused."""
    with pytest.raises(SourceError):
        fetched(version)
