"""Small sources in the style of FlashInfer's schedulers, and their rules."""

from functools import cache

from nearfree.sources.backends import flashinfer
from nearfree.sources.language.reading import mechanism_rule, read_rule
from nearfree.sources.language.rule import Rule

UTILS = "include/flashinfer/utils.cuh"
SCHEDULER = "include/flashinfer/attention/scheduler.cuh"
CHOICE = "flashinfer/utils.py"
SELECTOR = """
inline uint32_t FA2DetermineCtaTileQ(int64_t avg_packed_qo_len, uint32_t head_dim) {
  // if (avg_packed_qo_len > 999) return 256;
  if (avg_packed_qo_len > 64 && head_dim < 256) {
    return 128;
  }
  auto capability = GetCudaComputeCapability();
  if (capability.first >= 8) {
    return avg_packed_qo_len > 16 ? 64 : 16;
  }
  return 64;
}
"""
PLANNERS = """
template <typename IdType>
inline auto PrefillSplitQOKVIndptr(IdType* qo_indptr_h, uint32_t total_num_rows,
                                   uint32_t batch_size, uint32_t num_qo_heads,
                                   uint32_t num_kv_heads, uint32_t head_dim,
                                   bool enable_cuda_graph) {
  const uint32_t gqa_group_size = num_qo_heads / num_kv_heads;
  std::vector<int64_t> packed_qo_len_arr(batch_size);
  for (uint32_t i = 0; i < batch_size; ++i) {
    packed_qo_len_arr[i] = int64_t(qo_indptr_h[i + 1] - qo_indptr_h[i]) * int64_t(gqa_group_size);
    if (packed_qo_len_arr[i] < 0) {
      std::ostringstream err_msg;
      err_msg << "request " << i << " has " << packed_qo_len_arr[i];
      FLASHINFER_ERROR(err_msg.str());
    }
  }
  uint32_t cta_tile_q;
  if (enable_cuda_graph) {
    const uint64_t max_seq_len = total_num_rows - batch_size + 1;
    uint64_t max_qo_len = uint64_t(max_seq_len) * gqa_group_size;
    cta_tile_q = FA2DetermineCtaTileQ(max_qo_len, head_dim);
  } else {
    int64_t sum = 0;
    for (uint32_t i = 0; i < batch_size; ++i) {
      sum += packed_qo_len_arr[i];
    }
    cta_tile_q = FA2DetermineCtaTileQ(sum / batch_size, head_dim);
  }
  uint32_t tiles = 0;
  for (uint32_t i = 0; i < batch_size; ++i) {
    tiles += ceil_div(packed_qo_len_arr[i], cta_tile_q);
  }
  return std::make_tuple(tiles, cta_tile_q);
}

template <typename IdType>
cudaError_t PrefillSM90Plan(IdType* qo_indptr_h, uint32_t batch_size, uint32_t head_dim_vo) {
  int cta_tile_q = 128;
  if (head_dim_vo == 64) {
    cta_tile_q = 192;
  }
  for (uint32_t i = 0; i < batch_size; ++i) {
    int qo_len = qo_indptr_h[i + 1] - qo_indptr_h[i];
    int num_qo_tiles = ceil_div(qo_len, cta_tile_q);
    schedule(num_qo_tiles);
  }
  return cudaSuccess;
}
"""
BACKEND = '''
def is_fa3_supported(pos_encoding_mode, use_custom_mask, dtype_kv):
    if use_custom_mask or pos_encoding_mode != PosEncodingMode.NONE.value:
        return False
    return dtype_kv not in {torch.float8_e4m3fn, torch.float8_e5m2}


def determine_attention_backend(device, pos_encoding_mode, use_custom_mask, dtype_q, dtype_kv):
    """Choose by the device."""
    major, _ = get_compute_capability(device)
    new = version_at_least(torch.version.cuda, "12.3")
    if major == 9 and new and is_fa3_supported(pos_encoding_mode, use_custom_mask, dtype_kv):
        return "fa3"
    return "fa2"
'''


@cache
def rules(**files: str) -> dict[str, Rule]:
    """Return the rules of a release with some files changed: selector, planners or backend."""
    return rules_of(changed(**files))


def changed(
    selector: str = SELECTOR, planners: str = PLANNERS, backend: str = BACKEND
) -> dict[str, str]:
    """Return the files of a release."""
    return {UTILS: selector, SCHEDULER: planners, CHOICE: backend}


def rules_of(files: dict[str, str]) -> dict[str, Rule]:
    """Return the rules and mechanisms of some files."""
    read = [read_rule(reading, flashinfer.PACKAGE, "1.0") for reading in flashinfer.readings(files)]
    links = [
        mechanism_rule(mechanism, flashinfer.PACKAGE, "1.0")
        for mechanism in flashinfer.mechanisms(files)
    ]
    return {rule.rule: Rule(rule) for rule in (*read, *links)}
