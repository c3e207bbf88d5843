"""C++ in the form of FlashAttention-2: each construct of its rules, small."""

SWITCH = """
#define FLAG(COND, NAME, ...) \\
  [&] { if (COND) { constexpr static bool NAME = true; return __VA_ARGS__(); } \\
        else { constexpr static bool NAME = false; return __VA_ARGS__(); } }()
#define WIDTH(D, ...) \\
  [&] { if (D <= 40) { constexpr static int kHeadDim = 40; return __VA_ARGS__(); } \\
        else if (D <= 80) { constexpr static int kHeadDim = 80; return __VA_ARGS__(); } }()
"""
LAUNCH = """
template <typename Traits, bool Drop, bool Causal>
void run_flash_fwd(Params &params, Stream stream) {
    const int blocks = (params.seqlen_q + Traits::kBlockM - 1) / Traits::kBlockM;
    dim3 grid(blocks, params.b, params.h);
    auto kernel = &forward<Traits>;
    kernel<<<grid, Traits::kThreads, 0, stream>>>(params);
}
template <typename Traits>
void run_flash_splitkv_fwd(Params &params, Stream stream) {
    const int blocks = cute::ceil_div(params.seqlen_q, Traits::kBlockM);
    dim3 grid(blocks, params.num_splits, params.b * params.h);
    auto kernel = &split<Traits>;
    kernel<<<grid, Traits::kThreads, 0, stream>>>(params);
}
template <typename T, int Dim, bool Causal>
void run_mha_fwd_splitkv_dispatch(Params &params, Stream stream) {
    constexpr static int kBlockM = 24;
    run_flash_splitkv_fwd<Tr<Dim, kBlockM, 16, T>>(params, stream);
}
template <typename T, bool Causal>
void narrow(Params &params, Stream stream) {
    FLAG(params.p_dropout < 1.f, Drop, [&] {
        // run_flash_fwd<Tr<40, 999, 16, T>, Drop, Causal>(params, stream);
        run_flash_fwd<Tr<40, 96, 16, T>, Drop, Causal>(params, stream);
    });
}
template <typename T, bool Causal>
void wide(Params &params, Stream stream) {
    auto [cc_major, cc_minor] = get_compute_capability(get_current_device());
    bool small = cc_major == 8 && cc_minor > 0;
    FLAG(params.p_dropout < 1.f, Drop, [&] {
        if (small) { run_flash_fwd<Tr<80, 48, 16, T>, Drop, Causal>(params, stream); }
        else { run_flash_fwd<Tr<80, 72, 16, T>, Drop, Causal>(params, stream); }
    });
}
"""
API = """
void run_mha_fwd(Params &params, Stream stream, bool force_split_kernel=false) {
    WIDTH(params.d, [&] {
        FLAG(params.is_causal, Causal, [&] {
            if (params.num_splits <= 1 && !force_split_kernel) {
                run_mha_fwd_<elem_type, kHeadDim, Causal>(params, stream);
            } else {
                run_mha_fwd_splitkv_dispatch<elem_type, kHeadDim, Causal>(params, stream);
            }
        });
    });
}
void set_params_fprop(Params &params, const size_t b, const size_t seqlen_q, const size_t h,
                      const size_t d, const at::Tensor q, float p_dropout, int right) {
    params = {};
    params.q_ptr = q.data_ptr();
    params.b = b;
    params.h = h;
    params.d = d;
    params.seqlen_q = seqlen_q;
    params.p_dropout = 1.f - p_dropout;
    params.is_causal = right == 0;
}
inline int num_splits_heuristic(int work, int room, int most) {
    if (work >= 0.8f * room) { return 1; }
    int best = 1;
    for (int n = 1; n <= most; n++) { if (work * n <= 2 * room) { best = n; } }
    return best;
}
std::tuple<at::Tensor, at::Tensor> set_params_splitkv(Params &params, const int b, const int h,
        const int seqlen_k, const int seqlen_q, const int num_splits, const int sms) {
    params.num_splits = num_splits;
    if (num_splits < 1) {
        params.num_splits = num_splits_heuristic(b * h * ((seqlen_q + 23) / 24), sms,
                                                 (seqlen_k + 99) / 100);
    }
    return std::make_tuple(at::Tensor(), at::Tensor());
}
std::vector<at::Tensor> mha_fwd(at::Tensor &q, const at::Tensor &k, const float p_dropout,
                                bool is_causal, int window_size_right) {
    const auto sizes = q.sizes();
    const int batch_size = sizes[0];
    int seqlen_q = sizes[1];
    int num_heads = sizes[2];
    const int num_heads_k = k.size(2);
    TORCH_CHECK(batch_size > 0, "nothing to do");
    if (is_causal) { window_size_right = 0; }
    const int swapped = seqlen_q == 1 && num_heads > num_heads_k;
    if (swapped) {
        q = q.reshape({batch_size, num_heads_k, -1});
        seqlen_q = num_heads / num_heads_k;
        num_heads = num_heads_k;
    }
    Params params;
    set_params_fprop(params, batch_size, seqlen_q, num_heads, sizes[3], q, p_dropout,
                     window_size_right);
    at::Tensor a, o;
    std::tie(a, o) = set_params_splitkv(params, batch_size, num_heads, k.size(1), seqlen_q, 0,
                                        get_num_sm(get_current_device()));
    run_mha_fwd(params, stream);
    return {q};
}
std::vector<at::Tensor> mha_varlen_fwd(at::Tensor &q, const at::Tensor &k, int max_seqlen_q,
        const float p_dropout, bool is_causal, int window_size_right) {
    if (is_causal) { window_size_right = 0; }
    Params params;
    set_params_fprop(params, cu_seqlens_q.numel() - 1, max_seqlen_q, q.sizes()[1],
                     head_size(q), q, p_dropout, window_size_right);
    if (max_seqlen_k > 0) { run_mha_fwd(params, stream, block_table_.has_value()); }
    return {q};
}
std::vector<at::Tensor> mha_fwd_kvcache(at::Tensor &q, const at::Tensor &kcache, bool is_causal,
                                        int window_size_right, int num_splits) {
    const auto sizes = q.sizes();
    if (is_causal) { window_size_right = 0; }
    Params params;
    set_params_fprop(params, sizes[0], sizes[1], sizes[2], sizes[3], q, 0.f, window_size_right);
    set_params_splitkv(params, sizes[0], sizes[2], kcache.size(1), sizes[1], num_splits,
                       dprops->multiProcessorCount);
    run_mha_fwd(params, stream, k_.has_value() || block_table_.has_value());
    return {q};
}
"""


def special(dim: int, callee: str) -> str:
    return "\n".join(
        f"template<> void run_mha_fwd_<{kind}, {dim}, {causal}>(Params &params, Stream stream) {{"
        f" {callee}<{kind}, {causal}>(params, stream); }}"
        for kind in ("cutlass::half_t", "cutlass::bfloat16_t")
        for causal in ("true", "false")
    )


FILES = {
    "api.cpp": API.replace("head_size(q)", "sizes[2]").replace(
        "    if (is_causal) { window_size_right = 0; }\n    Params params;\n"
        "    set_params_fprop(params, cu",
        "    const auto sizes = q.sizes();\n    if (is_causal) { window_size_right = 0; }\n"
        "    Params params;\n    set_params_fprop(params, cu",
    ),
    "launch.h": LAUNCH,
    "switch.h": SWITCH,
    "narrow.cu": special(40, "narrow"),
    "wide.cu": special(80, "wide"),
}
