"""Made-up files in the form of ggml's for NVIDIA GPUs, with numbers of no release."""

from nearfree.sources.backends import ggml_cuda_text as text

CUDA = """\
static void ggml_cuda_init() {
    info.devices[id].cc = 100*prop.major + 10*prop.minor;
}
static bool ggml_cuda_should_fuse_mul_mat_vec_f(const ggml_tensor * tensor) {
    if (tensor->op == GGML_OP_MUL_MAT && dst->ne[1] != 1) {
        return false;
    }
}
static bool ggml_cuda_should_fuse_mul_mat_vec_q(const ggml_tensor * tensor) {
    if (tensor->op == GGML_OP_MUL_MAT && dst->ne[1] != 1) {
        return false;
    }
}
static void ggml_cuda_mul_mat(ggml_backend_cuda_context & ctx, const ggml_tensor * src0) {
    GGML_TENSOR_BINARY_OP_LOCALS

    if (ggml_cuda_op_mul_mat_use_fwht(dst) && ggml_cuda_op_fwht(ctx, src1, dst)) {
        return;
    }
    const bool bad_padding_clear = ggml_nbytes(src0) != 0;
    if (bad_padding_clear || src1->type != GGML_TYPE_F32 || dst->type != GGML_TYPE_F32) {
        ggml_cuda_mul_mat_cublas(ctx, src0, src1, dst);
        return;
    }
    const int cc        = ggml_cuda_info().devices[ctx.device].cc;
    const int warp_size = ggml_cuda_info().devices[ctx.device].warp_size;
    if (ggml_cuda_should_use_mmvf(src0->type, cc, src0->ne, src0->nb, ne11)) {
        ggml_cuda_mul_mat_vec_f(ctx, src0, src1, nullptr, dst);
        return;
    }
    if (ne01 == 1 && ne11 > MMVF_MAX_BATCH_SIZE) {
        ggml_tensor dst_vec = *dst;
        ggml_cuda_mul_mat_vec_f(ctx, src1, src0, nullptr, &dst_vec);
        return;
    }
    if (ggml_cuda_should_use_mmf(src0->type, cc, warp_size, src0->ne, src0->nb, ne11, false)) {
        ggml_cuda_mul_mat_f(ctx, src0, src1, nullptr, dst);
        return;
    }
    if (ggml_cuda_should_use_mmvq(src0->type, cc, ne11)) {
        ggml_cuda_mul_mat_vec_q(ctx, src0, src1, nullptr, dst);
        return;
    }
    if (ggml_cuda_should_use_mmq(src0->type, cc, ne11, 0)) {
        ggml_cuda_mul_mat_q(ctx, src0, src1, nullptr, dst);
        return;
    }
    ggml_cuda_mul_mat_cublas(ctx, src0, src1, dst);
}
static void ggml_cuda_mul_mat_id(ggml_backend_cuda_context & ctx, ggml_tensor * dst) {
    GGML_ASSERT(dst->type == GGML_TYPE_F32);
    GGML_TENSOR_BINARY_OP_LOCALS

    const int cc = ggml_cuda_info().devices[ggml_cuda_get_device()].cc;
    if (src1->type == GGML_TYPE_F32 && dst->type == GGML_TYPE_F32) {
        static_assert(MMVQ_MAX_BATCH_SIZE == MMVF_MAX_BATCH_SIZE);
        if (ne2 <= MMVQ_MAX_BATCH_SIZE) {
            if (ggml_is_quantized(src0->type)) {
                const int mmvq_mmid_max = get_mmvq_mmid_max_batch(src0->type, cc);
                if (ne2 <= mmvq_mmid_max) {
                    ggml_cuda_mul_mat_vec_q(ctx, src0, src1, ids, dst);
                    return;
                }
            }
        }
        if (ggml_cuda_should_use_mmq(src0->type, cc, ne12, ne02)) {
            ggml_cuda_mul_mat_q(ctx, src0, src1, ids, dst);
            return;
        }
        if (ggml_cuda_should_use_mmf(src0->type, cc, WARP_SIZE, src0->ne, src0->nb,
                src1->ne[2], true)) {
            ggml_cuda_mul_mat_f(ctx, src0, src1, ids, dst);
            return;
        }
    }
    GGML_ASSERT(ggml_cuda_mul_mat_id_needs_sync(dst, cc));
    cudaStream_t stream = ctx.stream();
}
"""
COMMON = """\
#define WARP_SIZE 32
#define GGML_CUDA_CC_VOLTA           700
#define GGML_CUDA_CC_TURING          750
#define GGML_CUDA_CC_AMPERE          800
#define GGML_CUDA_CC_ADA_LOVELACE    890 // a comment
#define GGML_CUDA_CC_BLACKWELL       1200
#define GGML_CUDA_CC_IS_NVIDIA(cc)   (cc < GGML_CUDA_CC_OFFSET_MTHREADS)
static bool fp16_mma_hardware_available(const int cc) {
    return (GGML_CUDA_CC_IS_NVIDIA(cc) && cc >= GGML_CUDA_CC_VOLTA) || cc >= GGML_CUDA_CC_RDNA3;
}
static bool bf16_mma_hardware_available(const int cc) {
    return (GGML_CUDA_CC_IS_NVIDIA(cc) && cc >= GGML_CUDA_CC_AMPERE) || cc >= GGML_CUDA_CC_RDNA3;
}
static bool fp32_mma_hardware_available(const int cc) {
    return GGML_CUDA_CC_IS_CDNA(cc);
}
static bool volta_mma_available(const int cc) {
    return GGML_CUDA_CC_IS_NVIDIA(cc) && ggml_cuda_highest_compiled_arch(cc) == GGML_CUDA_CC_VOLTA;
}
static bool turing_mma_available(const int cc) {
    return GGML_CUDA_CC_IS_NVIDIA(cc) && ggml_cuda_highest_compiled_arch(cc) >= GGML_CUDA_CC_TURING;
}
static bool ampere_mma_available(const int cc) {
    return GGML_CUDA_CC_IS_NVIDIA(cc) && ggml_cuda_highest_compiled_arch(cc) >= GGML_CUDA_CC_AMPERE;
}
static bool blackwell_mma_available(const int cc) {
    return GGML_CUDA_CC_IS_NVIDIA(cc) &&
        ggml_cuda_highest_compiled_arch(cc) >= GGML_CUDA_CC_BLACKWELL;
}
"""
MMVF = """\
static void mul_mat_vec_f_cuda_switch_ncols_dst(
        const T * x) {
    switch (ncols_dst) {
        case 1:
            launch_mul_mat_vec_f_cuda<T, type_acc, 1>
            break;
        case 2:
            launch_mul_mat_vec_f_cuda<T, type_acc, 2>
            break;
    }
}
bool ggml_cuda_should_use_mmvf(enum ggml_type type, int cc, const int64_t * src0_ne,
        const size_t * src0_nb, int64_t ne11) {
    if (src0_ne[0] % 2 != 0) {
        return false;
    }
    const size_t ts = ggml_type_size(type);
    if (src0_nb[0] != ts) {
        return false;
    }

    // Pointers.
    for (size_t i = 1; i < GGML_MAX_DIMS; ++i) {
        if (src0_nb[i] % (2*ts) != 0) {
            return false;
        }
    }

    switch (type) {
        case GGML_TYPE_F16:
            if (GGML_CUDA_CC_IS_NVIDIA(cc)) {
                if (ampere_mma_available(cc)) {
                    return ne11 <= 2;
                }
                return ne11 <= 1;
            }
            return ne11 <= 9;
        default:
            return false;
    }
}
"""
MMF = """\
static __forceinline__ int mmf_get_rows_per_block(const int cc) {
    if (GGML_CUDA_CC_IS_CDNA(cc)) {
        return MMF_ROWS_PER_BLOCK_CDNA;
    } else {
        return MMF_ROWS_PER_BLOCK;
    }
}
bool ggml_cuda_should_use_mmf(enum ggml_type type, int cc, int warp_size, const int64_t * src0_ne,
        const size_t * src0_nb, const int src1_ncols, bool mul_mat_id) {
    if (ggml_is_quantized(type)) {
        return false;
    }
    const size_t ts = ggml_type_size(type);
    if (src0_ne[0] % (warp_size * (4/ts)) != 0) {
        return false;
    }
    if (src0_nb[0] != ts) {
        return false;
    }
    for (size_t i = 1; i < GGML_MAX_DIMS; ++i) {
        if (src0_nb[i] % (2*ts) != 0) {
            return false;
        }
    }
    if (src0_ne[1] % mmf_get_rows_per_block(cc) != 0) {
        return false;
    }
    if (mul_mat_id) {
        if (src1_ncols > 20) {
            return false;
        }
    } else {
        if (src1_ncols > 5) {
            return false;
        }
    }
    switch (type) {
        case GGML_TYPE_F16:
            return turing_mma_available(cc);
        default:
            return false;
    }
}
"""
MMF_KERNEL = """\
#define MMF_ROWS_PER_BLOCK 40
#define MMF_ROWS_PER_BLOCK_CDNA 64
static void mul_mat_f_switch_cols_per_block(
        const T * x) {
    const int ncols_case = (ids && ncols_dst > 3) ? 3 : ncols_dst;
    switch (ncols_case) {
        case  1: {
            mul_mat_f_cuda<T,  rows_per_block, 1>(x);
        } break;
        case  2: {
            mul_mat_f_cuda<T,  rows_per_block, 2>(x);
        } break;
        case  3: {
            mul_mat_f_cuda<T,  rows_per_block, 3>(x);
        } break;
    }
}
"""
MMVQ = """\
static constexpr __host__ __device__ int get_mmvq_mmid_max_batch_pascal_older(ggml_type type) {
    switch (type) {
        default:                return MMVQ_MAX_BATCH_SIZE;
    }
}
static constexpr __host__ __device__ int get_mmvq_mmid_max_batch_turing_plus(ggml_type type) {
    switch (type) {
        case GGML_TYPE_Q2_K:    return 2;
        default:                return MMVQ_MAX_BATCH_SIZE;
    }
}
int get_mmvq_mmid_max_batch(ggml_type type, int cc) {
    if (GGML_CUDA_CC_IS_NVIDIA(cc)) {
        if (cc >= GGML_CUDA_CC_ADA_LOVELACE) {
            return MMVQ_MAX_BATCH_SIZE;
        }
        if (cc >= GGML_CUDA_CC_TURING) {
            return get_mmvq_mmid_max_batch_turing_plus(type);
        }
        return get_mmvq_mmid_max_batch_pascal_older(type);
    }
    return MMVQ_MAX_BATCH_SIZE;
}
bool ggml_cuda_should_use_mmvq(enum ggml_type type, int cc, int64_t ne11) {
    if (!ggml_is_quantized(type)) {
        return false;
    }
    if (GGML_CUDA_CC_IS_NVIDIA(cc) && cc == GGML_CUDA_CC_ADA_LOVELACE) {
        switch (type) {
            case GGML_TYPE_Q2_K:
                return ne11 <= 1;
            default:
                return ne11 <= MMVQ_MAX_BATCH_SIZE;
        }
    }
    return ne11 <= MMVQ_MAX_BATCH_SIZE;
}
static void mul_mat_vec_q_switch_ncols_dst(
        const void * vx) {
    if (has_ids && ncols_dst > 1) {
        // Several tokens.
        mul_mat_vec_q_moe_launch<type>(vx);
        return;
    }

    switch (ncols_dst) {
        case 1: {
            // A comment.
            static constexpr int c_ncols_dst = 1;
        } break;
        case 2: {
            constexpr int c_ncols_dst = 2;
        } break;
        case 3: {
            constexpr int c_ncols_dst = 3;
        } break;
    }
}
"""
MMQ = """\
static ggml_prec ggml_cuda_mmq_get_prec_src1(const ggml_tensor * src0,
        const ggml_tensor * dst, const int cc) {
    static const ggml_prec prec_env = ggml_cuda_mmq_get_prec_env();

    ggml_prec prec = prec_env;
    if (prec == GGML_PREC_UNDEFINED) {
        prec = (ggml_prec) ggml_get_op_params_i32(dst, 3);
    }
    const bool can_use_q4 = src0->type == GGML_TYPE_MXFP4 && blackwell_mma_available(cc);
    if (prec == GGML_PREC_Q8 || !can_use_q4) {
        return GGML_PREC_Q8;
    }
    return GGML_PREC_Q4;
}
void ggml_cuda_mul_mat_q() {
        const mmq_args args = {
            ne1, ne1};
    int64_t ncols_opt = ne12;
    if (GGML_CUDA_CC_IS_RDNA3(cc) || GGML_CUDA_CC_IS_RDNA4(cc)) {
        ncols_opt = 1;
    }
    const mmq_args args = {
        ne12, ncols_opt};
}
bool ggml_cuda_should_use_mmq(enum ggml_type type, int cc, int64_t ne11, int64_t n_experts) {
#ifdef GGML_CUDA_FORCE_CUBLAS
    return false;
#endif // GGML_CUDA_FORCE_CUBLAS

    bool mmq_supported;

    switch (type) {
        case GGML_TYPE_Q2_K:
        case GGML_TYPE_Q4_0:
        case GGML_TYPE_MXFP4:
            mmq_supported = true;
            break;
        default:
            mmq_supported = false;
            break;
    }
    if (!mmq_supported) {
        return false;
    }
    {
        const int    id    = ggml_cuda_get_device();
        const size_t smpbo = ggml_cuda_info().devices[id].smpbo;
        if (smpbo < 48 * 1024) {
            return false;
        }
    }
    if (turing_mma_available(cc)) {
        return true;
    }
    return false;
}
"""
MMQ_KERNEL = """\
#define MMQ_DP4A_MAX_BATCH_SIZE 64 // a comment
#define MMQ_TILE_NE_K 32
static constexpr int QK8_1_MMQ  = 4*QK8_1;
static_assert(sizeof(block_q8_1_mmq) == QK8_1_MMQ + 4*sizeof(half2), "size");
static_assert(sizeof(block_q8_1_mmq) == 4*sizeof(block_q8_1),      "size");
static constexpr __host__ __device__ int ggml_cuda_mmq_get_sram_stride(
        ggml_cuda_mmq_sram_layout sram_layout) {
    switch (sram_layout) {
        case GGML_CUDA_MMQ_SRAM_LAYOUT_Q8_0:
            return 2*MMQ_TILE_NE_K + 2*MMQ_TILE_NE_K/QI8_0 + 4;
        default:
            return -1;
    }
}
struct ggml_cuda_mmq_config {
    __host__ int use_mma_data_layout(const int cc) const {
        if (amd_mfma_available(cc) || turing_mma_available(cc)) {
            return true;
        }
        return false;
    }
};
static __host__ ggml_cuda_mmq_config ggml_cuda_mmq_get_config(const ggml_type type, const int J,
        const bool fallback, const int cc, const ggml_prec prec_src1 = GGML_PREC_Q8) {
    if (blackwell_mma_available(cc)) {
        if (prec_src1 != GGML_PREC_Q4 && type == GGML_TYPE_MXFP4) {
            return ggml_cuda_mmq_get_config_ampere(type, J, fallback);
        }
        return ggml_cuda_mmq_get_config_blackwell(type, J, fallback);
    }
    return ggml_cuda_mmq_get_config_ampere(type, J, fallback);
}
static __host__ int ggml_cuda_mmq_get_nbytes_shared_x(
        const ggml_cuda_mmq_config & config, const int cc) {
    if (config.use_mma_data_layout(cc)) {
        return config.I * ggml_cuda_mmq_get_sram_stride(config.sram_layout) * 4;
    }
    return 1;
}
static size_t mmq_get_nbytes_shared(const ggml_cuda_mmq_config & config, const int cc) {
    const size_t nbs_ids = config.J*sizeof(int);
    const size_t nbs_x = ggml_cuda_mmq_get_nbytes_shared_x(config, cc);
    const size_t nbs_y = config.J * (sizeof(block_q8_1_mmq));
    return nbs_ids + nbs_x + GGML_PAD(nbs_y, config.nthreads*sizeof(int));
}
static void launch_mul_mat_q(ggml_backend_cuda_context & ctx) {
    const int ntx  = (args.ncols_max + config.J - 1) / config.J;
}
void mul_mat_q_switch_J(ggml_backend_cuda_context & ctx) {
    int J_best        = 0;
    int ntiles_J_best = INT_MAX;

    for (int J = 8; J <= 40 && ntiles_J_best > 1; J += 8) {
        if (config.type == GGML_TYPE_COUNT) {
            continue;
        }

        if (mmq_get_nbytes_shared(config, cc) > smpbo) {
            continue;
        }

        const int ntiles_x = (args.ncols_opt + config.J - 1) / config.J;

        if (ntiles_x < ntiles_J_best) {
            J_best = J;
            ntiles_J_best = ntiles_x;
        }
    }
}
void mul_mat_q_case(ggml_backend_cuda_context & ctx, const mmq_args & args, cudaStream_t stream) {
    if (args.nrows_x % 96 == 0) {
        constexpr bool fallback = false;
        mul_mat_q_switch_J<type, fallback>(ctx, args, stream);
    } else {
        constexpr bool fallback = true;
        mul_mat_q_switch_J<type, fallback>(ctx, args, stream);
    }
}
"""
AMPERE = """\
static constexpr ggml_cuda_mmq_config ggml_cuda_mmq_get_config_ampere(ggml_type type, int J) {
    CASE(GGML_TYPE_Q4_0, 256, 1, 128,  16, GGML_CUDA_MMQ_SRAM_LAYOUT_Q8_0, K, true, true);
    CASE(GGML_TYPE_Q4_0, 256, 1, 128,   8, GGML_CUDA_MMQ_SRAM_LAYOUT_Q8_0, K, true, false);
    CASE(GGML_TYPE_Q4_0, 256, 1, 128,  24, GGML_CUDA_MMQ_SRAM_LAYOUT_Q8_0, K, true, false);
    CASE(GGML_TYPE_Q4_0, 256, 1, 128,  40, GGML_CUDA_MMQ_SRAM_LAYOUT_Q8_0, K, true, false);

    return ggml_cuda_mmq_config(GGML_TYPE_COUNT, 256, 1, 128, 64, 256, false, true);
}
"""
BLACKWELL = """\
static constexpr ggml_cuda_mmq_config ggml_cuda_mmq_get_config_blackwell(ggml_type type, int J) {
    CASE(GGML_TYPE_MXFP4, 512, 1, 64,   8, GGML_CUDA_MMQ_SRAM_LAYOUT_FP4, K, true, true);
    CASE(GGML_TYPE_MXFP4, 512, 1, 64,   8, GGML_CUDA_MMQ_SRAM_LAYOUT_FP4, K, true, false);

    return ggml_cuda_mmq_get_config_ampere(type, J, fallback);
}
"""
OPTIONS = """\
option(GGML_CUDA_FORCE_MMQ                  "ggml: use mmq kernels instead of cuBLAS"         OFF)
option(GGML_CUDA_FORCE_CUBLAS               "ggml: always use cuBLAS instead of mmq kernels"  OFF)
"""
BLOCKS = """\
#define QI8_0 (QK8_0 / (4 * QR8_0))
#define QR8_0 1
#define QK8_0 32
#define QK8_1 32
"""
HEADER = """\
#define GGML_PAD(x, n) (((x) + (n) - 1) & ~((n) - 1))
    enum ggml_prec {
        GGML_PREC_UNDEFINED = 0,
        GGML_PREC_Q8        = 30,
        GGML_PREC_Q4        = 40,
    };
"""
TYPES = """\
static const struct ggml_type_traits type_traits[GGML_TYPE_COUNT] = {
    [GGML_TYPE_I8] = {
        .type_size                = sizeof(int8_t),
        .is_quantized             = false,
    },
    [GGML_TYPE_F16] = {
        .type_size                = sizeof(ggml_fp16_t),
        .is_quantized             = false,
    },
    [GGML_TYPE_Q4_0] = {
        .type_size                = sizeof(block_q4_0),
        .is_quantized             = true,
    },
};
"""
TABLE = f"{text.FOLDER}mmq-config-ampere.cuh"
FILES = {
    text.CUDA: CUDA,
    text.COMMON: COMMON,
    text.MMVF: MMVF,
    text.MMVF_HEADER: "#define MMVF_MAX_BATCH_SIZE 3 // a comment\n",
    text.MMF: MMF,
    text.MMF_KERNEL: MMF_KERNEL,
    text.MMVQ: MMVQ,
    text.MMVQ_HEADER: "#define MMVQ_MAX_BATCH_SIZE 3 // a comment\n",
    text.MMQ: MMQ,
    text.MMQ_KERNEL: MMQ_KERNEL,
    TABLE: AMPERE,
    f"{text.FOLDER}mmq-config-blackwell.cuh": BLACKWELL,
    text.OPTIONS: OPTIONS,
    text.BLOCKS: BLOCKS,
    text.HEADER: HEADER,
    text.TYPES: TYPES,
}
