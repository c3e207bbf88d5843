"""Made-up files in the form of ggml's, with numbers of no release."""

from nearfree.sources.backends import ggml, ggml_repack, ggml_sgemm, ggml_tiled

CPU = """\
int ggml_cpu_has_avx2(void) {
#if defined(__AVX2__)
    return 1;
#else
    return 0;
#endif
}
int ggml_cpu_has_avx512(void) {
#if defined(__AVX512F__)
    return 1;
#else
    return 0;
#endif
}
static const struct ggml_type_traits_cpu type_traits_cpu[GGML_TYPE_COUNT] = {
    [GGML_TYPE_F32] = {
        .vec_dot = dot,
        .vec_dot_type = GGML_TYPE_F32,
        .nrows = 1,
    },
    [GGML_TYPE_Q4_0] = {
        .vec_dot = dot,
        .vec_dot_type = GGML_TYPE_Q8_0,
#if defined (__ARM_FEATURE_MATMUL_INT8)
        .nrows = 9,
#else
        .nrows = 3,
#endif
    },
    [GGML_TYPE_Q8_1] = {
        .vec_dot_type = GGML_TYPE_Q8_1,
        .nrows = 1,
    },
};
static void ggml_compute_forward(struct params * params, struct tensor * tensor) {
    if (ggml_cpu_extra_compute_forward(params, tensor)) {
        return;
    }
    ggml_compute_forward_mul_mat(params, tensor);
    ggml_compute_forward_mul_mat_id(params, tensor);
}
static void ggml_compute_forward_mul_mat_one_chunk(
    struct params * params) {
    const int64_t blck_1 = 11;
    for (int64_t iir1 = ir1_start; iir1 < ir1_end; iir1 += blck_1) {
        work();
    }
}
void ggml_compute_forward_mul_mat(struct params * params, struct tensor * dst) {
    if (!llamafile_sgemm(params, dst)) {
        ggml_compute_forward_mul_mat_one_chunk(params, dst);
    }
}
static void ggml_compute_forward_mul_mat_id_one_chunk(
    struct params * params) {
    const int64_t blck_1 = 14;
    for (int64_t iir1 = ir1_start; iir1 < ir1_end; iir1 += blck_1) {
        vec_dot(ne00, &tmp[ir0], 0, src0_cur + ir0*nb01, 0, src1_col, 0, 2);
    }
}
static void ggml_compute_forward_mul_mat_id(
        struct params * params) {
    for (int cur_a = 0; cur_a < n_as; ++cur_a) {
        ggml_compute_forward_mul_mat_id_one_chunk(params);
    }
}
"""
OPS = """\
static void ggml_compute_forward_flash_attn_ext_f16(
        struct params * params) {
    const bool kv_is_f32_or_f16 = (k->type == GGML_TYPE_F16);
    static constexpr int64_t Q_TILE_SZ = ggml_fa_tile_config::Q;
    bool use_tiled = !use_ref && (kv_is_f32_or_f16 && neq1 >= Q_TILE_SZ);
    if (use_tiled) {
        ggml_compute_forward_flash_attn_ext_tiled(params);
    }
}
"""
COMMON = """\
#define GGML_FA_TILE_Q 24
struct ggml_fa_tile_config {
    static constexpr size_t Q = GGML_FA_TILE_Q;
};
"""
REPACK = """\
template <> void gemm<block_q4_0, 8, 8, GGML_TYPE_Q8_0>(int n, int nr) {
    ggml_gemm_q4_0_8x8_q8_0(n, nr);
}
template <typename BLOC_TYPE, int64_t INTER_SIZE, int64_t NB_COLS, ggml_type PARAM_TYPE> class tensor_traits : public base {
    void forward_mul_mat_one_chunk(params * params) {
        const int64_t nrows = src1_end - src1_start;
        if (nrows > 6) {
            gemm<BLOC_TYPE, INTER_SIZE, NB_COLS, PARAM_TYPE>(ne00, s, bs, x, y,
                                                             nrows - (nrows % 5), ncols);
        }
        for (int iter = nrows - (nrows % 5); iter < nrows; iter++) {
            gemv<BLOC_TYPE, INTER_SIZE, NB_COLS, PARAM_TYPE>(ne00, s, 1, ncols);
        }
    }
    bool compute_forward(params * params, tensor * op) override {
        switch (op->op) {
            case GGML_OP_MUL_MAT_ID:
                forward_mul_mat_id(params, op);
                return true;
        }
    }
    void forward_mul_mat_id(params * params, tensor * op) {
        for (int cur_a = 0; cur_a < n_as; ++cur_a) {
            const int64_t nr1 = cne1;
            for (int ir1 = 0; ir1 < nr1; ir1++) {
                gemv<BLOC_TYPE, INTER_SIZE, NB_COLS, PARAM_TYPE>(
                    ne00, s, ne01, src0_cur, src1_col, 3, src0_cur_end - src0_cur_start);
            }
        }
    }
};
static const ggml::cpu::tensor_traits * ggml_repack_get_optimal_repack_type(const struct ggml_tensor * cur) {
    static const ggml::cpu::repack::tensor_traits<block_q4_0, 8, 8, GGML_TYPE_Q8_0> q4_0_8x8_q8_0;
    if (cur->type == GGML_TYPE_Q4_0) {
        if (ggml_cpu_has_avx2() || ggml_cpu_has_sve()) {
            if (cur->ne[1] % 7 == 0) {
                return &q4_0_8x8_q8_0;
            }
        }
    }
    return nullptr;
}
"""  # noqa: E501
X86 = """\
void ggml_gemm_q4_0_8x8_q8_0(int n, float * s, size_t bs, const void * vx, const void * vy, int nr, int nc) {
#if defined(__AVX2__)
    int64_t y = 0;
    int anr = nr - nr % 15;
    for (; y < anr / 5; y += 3) {
        work(y);
    }
    for (; y < nr / 5; y++) {
        work(y);
    }
    return;
#endif
    ggml_gemm_q4_0_8x8_q8_0_generic(n, s, bs, vx, vy, nr, nc);
}
"""  # noqa: E501
SGEMM = """\
#if defined(__AVX512F__)
#define VECTOR_REGISTERS 32
#else
#define VECTOR_REGISTERS 16
#endif
template <int M>
static inline int64_t BLOCK_SIZE(size_t m) {
    const int64_t blocks = (m + M - 1) / M;
    return (m + blocks - 1) / blocks;
}
class tinyBLAS {
    bool matmul(int64_t m, int64_t n) {
        if (k % KN != 0)
            return false;
#if VECTOR_REGISTERS == 32
        if (m % 10 == 0) {
            mnpack<4, 3, 1>(m, n, BLOCK_SIZE<3>(n), 12);
            return true;
        }
#else
        if (m % 10 == 0) {
            mnpack<4, 2, 1>(m, n, BLOCK_SIZE<2>(n), 12);
            return true;
        }
#endif
        return false;
    }
    template <int RM, int RN, int BM>
    inline void mnpack(int64_t m, int64_t n, int64_t SIZE_N, int64_t BN) {
        if (SIZE_N == RN) {
            return gemm<RM, RN, BM>(m, n, BN);
        }
        if constexpr (RN > 1) {
            return mnpack<RM, RN-1, BM>(m, n, SIZE_N, BN);
        } else {
            GGML_ASSERT(false);
        }
    }
    template <int RM, int RN, int BM>
    NOINLINE void gemm(int64_t m, int64_t n, int64_t BN) {
        const int64_t xtiles = (n + RN -1) / RN;
        const int64_t jj_RN = (xtiles - (xtiles * RN - n));
        const int64_t jj1 = jj2 < jj_RN * RN ? jj2 : jj_RN * RN;
        for (; jj < jj2; jj += RN - 1) {
            gemm_bloc<RM, RN-1>(ii + bi, jj);
        }
    }
};
class tinyBLAS_Q0_AVX {
    void mnpack(int64_t m0, int64_t m, int64_t n0, int64_t n) {
        int64_t mc, nc, mp, np;
        switch ((MIN(m - m0, 4) << 4) | MIN(n - n0, 3)) {
        case 0x43:
            mc = 4;
            nc = 3;
            gemm<4, 3>(m0, m, n0, n);
            break;
        case 0x42:
        case 0x41:
            mc = 4;
            nc = 1;
            gemm<4, 1>(m0, m, n0, n);
            break;
        default:
            return;
        }
        mp = m0 + (m - m0) / mc * mc;
        np = n0 + (n - n0) / nc * nc;
        mnpack(mp, m, n0, np);
        mnpack(m0, m, np, n);
    }
};
bool llamafile_sgemm(const params * params, int64_t m, int64_t n, int64_t k, const void *A,
                     int Atype, int Btype, int Ctype) {
    assert(m >= 0);
    if (n < 5)
        return false;
    if (Ctype != GGML_TYPE_F32)
        return false;
    switch (Atype) {
    case GGML_TYPE_F32: {
        if (Btype != GGML_TYPE_F32)
            return false;
#if defined(__AVX512F__)
        tinyBLAS<16, float> tb{ params,
            k, (const float *)A};
        return tb.matmul(m, n);
#else
        return false;
#endif
    }
    case GGML_TYPE_Q4_0: {
        if (Btype != GGML_TYPE_Q8_0)
            return false;
        tinyBLAS_Q0_AVX<block_q4_0> tb{
            k, (const block_q4_0 *)A};
        tb.matmul(m, n);
        return true;
    }
    default:
        return false;
    }
}
"""
TILED = """\
#if !defined(__AVX2__)
static bool ggml_tiled_supported(const struct ggml_tensor * src0,
                                 const struct ggml_tensor * src1) {
    UNUSED(src0);
    return false;
}
#else
static bool ggml_tiled_supported(const struct ggml_tensor * src0,
                                 const struct ggml_tensor * src1) {
    if (!ggml_tiled_matmul_enabled()) {
        return false;
    }
    if (src0->extra != NULL) {
        return false;
    }
    switch (src0->type) {
        case GGML_TYPE_Q6_K:
        case GGML_TYPE_Q4_K:
            return true;
        default:
            return false;
    }
}
#endif
static void ggml_compute_forward_mul_mat_tiled_one_chunk(
    struct params * params) {
    const int64_t TILE = 96;
    const int64_t MICRO = 12;
    for (int64_t iir1 = ir1_start; iir1 < ir1_end; ) {
        int64_t iir1_end = MIN(iir1 + TILE, ir1_end);
        if (n_src1 <= TILED_MICRO) {
            narrow();
        } else {
            for (int64_t ir1 = iir1; ir1 < iir1_end; ir1 += MICRO) {
                work();
            }
        }
    }
}
static void ggml_compute_forward_mul_mat_tiled_driver(
        struct params * params) {
    int chunk_size = 96;
    int64_t nchunk0 = (nr0 + chunk_size - 1) / chunk_size;
    int64_t nchunk1 = (nr1 + chunk_size - 1) / chunk_size;
    while (nchunk0 * nchunk1 < nth * 2 && chunk_size > 12) {
        chunk_size = chunk_size / 2;
        nchunk0 = (nr0 + chunk_size - 1) / chunk_size;
        nchunk1 = (nr1 + chunk_size - 1) / chunk_size;
    }
    const int64_t dr1 = (nr1 + nchunk1 - 1) / nchunk1;
}
static bool ggml_tiled_matmul_type_dispatch(struct params * params, struct tensor * dst) {
    switch (dst->src[0]->type) {
        case GGML_TYPE_Q6_K:
            return tiled_matmul_dispatch<block_q6_K, 16>(params, dst);
        case GGML_TYPE_Q4_K:
            return tiled_matmul_dispatch<block_q4_K, 32>(params, dst);
        default:
            return false;
    }
}
static bool ggml_tiled_min_batch(int64_t rows) {
    return rows >= 5 || ggml_tiled_matmul_forced();
}
bool ggml_compute_forward_mul_mat_tiled(
        struct params * params,
              struct tensor * dst) {
    if (params->use_ref) {
        return false;
    }
    if (!ggml_tiled_supported(dst->src[0], dst->src[1])) {
        return false;
    }
    if (!ggml_tiled_min_batch(dst->src[1]->ne[1])) {
        return false;
    }
    return ggml_tiled_matmul_type_dispatch(params, dst);
}
static void tiled_mmid_gemm_window(struct tensor * dst, int64_t nrows) {
    for (int64_t ir1 = 0; ir1 < nrows; ir1 += TILED_MICRO) {
        work();
    }
}
static void ggml_compute_forward_mul_mat_id_tiled_one_expert(
        struct params * params) {
    for (int64_t k = 0; k < cne1; k += TILED_TILE_K) {
        tiled_mmid_gemm_window(dst, nrows);
    }
}
bool ggml_compute_forward_mul_mat_id_tiled(
        struct params * params,
              struct tensor * dst,
        int64_t               cne1,
        const int32_t *       expert_rows) {
    if (!ggml_tiled_supported(dst->src[0], dst->src[1])) {
        return false;
    }
    if (cne1 < 7) {
        return false;
    }
    return ggml_tiled_matmul_type_dispatch(params, dst, expert_rows);
}
"""
LIST = """\
    if (GGML_SYSTEM_ARCH STREQUAL "x86")
        ggml_add_cpu_backend_variant(any)
        ggml_add_cpu_backend_variant(old              AVX)
        if (NOT MSVC)
            ggml_add_cpu_backend_variant(new          AVX AVX2 AMX_TILE)
        endif()
    elseif(GGML_SYSTEM_ARCH STREQUAL "ARM")
        ggml_add_cpu_backend_variant(arm              NEON)
    endif()
"""
OPTIONS = """\
                if (GGML_AVX)
                    list(APPEND ARCH_FLAGS -mavx)
                    list(APPEND ARCH_DEFINITIONS GGML_AVX)
                endif()
                if (GGML_AVX2)
                    list(APPEND ARCH_FLAGS -mavx2)
                    list(APPEND ARCH_FLAGS -mfma)
                    list(APPEND ARCH_DEFINITIONS GGML_AVX2)
                endif()
"""
SCORE = """\
static int ggml_backend_cpu_x86_score() {
    int score = 1;
#ifdef GGML_AVX
    if (!is.AVX()) { return 0; }
    score += 1;
#endif
#ifdef GGML_AVX2
    if (!is.AVX2()) { return 0; }
    if (!is.FMA()) { return 0; }
    score += 1<<6;
#endif
    return score;
}
"""
FILES = {
    ggml.CPU: CPU,
    ggml.OPS: OPS,
    ggml.COMMON: COMMON,
    ggml_repack.PATH: REPACK,
    ggml_repack.X86: X86,
    ggml_sgemm.PATH: SGEMM,
    ggml.LIST: LIST,
    ggml.OPTIONS: OPTIONS,
    ggml.SCORE: SCORE,
}
TILES = {
    ggml_tiled.PATH: TILED,
    ggml_tiled.KERNEL: "#define TILED_TILE_K    72 // block\n#define TILED_MICRO 12 // edge\n",
}
