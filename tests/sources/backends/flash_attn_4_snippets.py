"""Small sources in the style of FlashAttention 4's interface and kernels, and their rules."""

from functools import cache

from nearfree.sources.backends import flash_attn_4
from nearfree.sources.language.reading import mechanism_rule, read_rule
from nearfree.sources.language.rule import Rule

INTERFACE = '''
@dataclass(frozen=True)
class FwdConfig:
    """Rows and columns of a tile."""

    m_block_size: int
    n_block_size: int
    q_stage: int = 1


@lru_cache(maxsize=None)
def _validate_head_dims(head_dim, head_dim_v, capability, alignment):
    fits = 8 <= head_dim <= 256 and 8 <= head_dim_v <= 256
    assert fits and head_dim % alignment == 0, f"no kernel for {head_dim}"


def _tile_size(head_dim, is_causal):
    if head_dim <= 96:
        return FwdConfig(192, 128 if is_causal else 144)
    return FwdConfig(m_block_size=128, n_block_size=128)  # not FwdConfig(64, 64)


def num_splits_heuristic(blocks, num_sms, most):
    return 1 if blocks >= num_sms else min(num_sms // blocks, most)


def _flash_attn_fwd(
    q, k, v, cu_seqlens_q=None, max_seqlen_q=None, causal=False, tile_mn=None, num_splits=1,
    pack_gqa=None, mask_mod=None, out=None, _arch=None,
):
    q, k, v = [maybe_contiguous(t) for t in (q, k, v)]
    out = maybe_contiguous(out)
    num_head, head_dim = q.shape[-2:]
    if cu_seqlens_q is None:
        batch_size, seqlen_q = q.shape[:2]
        total_q = batch_size * seqlen_q
    else:
        batch_size = cu_seqlens_q.shape[0] - 1
        seqlen_q = None
        total_q = q.shape[0]
    num_head_kv = k.shape[-2]
    head_dim_v = v.shape[-1]
    assert q.dtype == k.dtype, "one type"
    arch = _get_device_arch() if _arch is None else _arch
    assert arch // 10 in [8, 9, 10], "unsupported"
    _validate_head_dims(head_dim, head_dim_v, arch // 10, 16 // v.element_size())
    qhead_per_kvhead = num_head // num_head_kv
    if pack_gqa is None:
        pack_gqa = qhead_per_kvhead > 1
    if total_q == 0:
        out.zero_()
        return out
    if mask_mod is not None:
        return other_kernel(q, k, v, mask_mod)
    fwd_cfg = FwdConfig(128, 128)
    if tile_mn is None and arch // 10 == 9:
        fwd_cfg = _tile_size(head_dim, causal)
    tile_m, tile_n = fwd_cfg.m_block_size, fwd_cfg.n_block_size
    if max_seqlen_q is None:
        max_seqlen_q = seqlen_q if cu_seqlens_q is None else total_q
    rows = max_seqlen_q * qhead_per_kvhead
    q_stage = 2 if arch // 10 == 10 and rows > tile_m else fwd_cfg.q_stage
    if num_splits < 1:
        sms = torch.cuda.get_device_properties(q.device).multi_processor_count
        num_splits = num_splits_heuristic(batch_size * num_head_kv, sms, 128)
    compile_key = (head_dim, causal, tile_m, tile_n)
    if compile_key not in _flash_attn_fwd.compile_cache:
        if arch // 10 == 8:
            fa_fwd = FlashAttentionForwardSm80(head_dim, tile_m=tile_m)
        elif arch // 10 == 9:
            fa_fwd = FlashAttentionForwardSm90(head_dim, tile_m=tile_m, pack_gqa=pack_gqa)
        elif head_dim == 256:
            pack_gqa = False
            fa_fwd = WideForward(head_dim)
        else:
            fa_fwd = FlashAttentionForwardSm100(head_dim, tile_m, q_stage=q_stage)
        _flash_attn_fwd.compile_cache[compile_key] = cute.compile(fa_fwd, q, k, v)
    if not is_fake_mode():
        _flash_attn_fwd.compile_cache[compile_key](q, k, v, out)
    return out


def flash_attn_func(q, k, v, num_splits: int = 1):
    return _flash_attn_fwd(q, k, v, num_splits=num_splits)


def flash_attn_varlen_func(q, k, v, cu_seqlens_q, max_seqlen_q, num_splits: int = 1):
    return _flash_attn_fwd(q, k, v, cu_seqlens_q, max_seqlen_q, num_splits=num_splits)
'''
KERNELS = """
class FlashAttentionForwardSm80:
    def __call__(self, mQ):
        return cute.ceil_div(mQ.shape[0], self.tile_m)


class FlashAttentionForwardSm90:
    def __call__(self, mQ, nheads_kv):
        if self.pack_gqa:
            mQ = pack_gqa_layout(mQ, self.qhead_per_kvhead, nheads_kv, head_idx=2)
        return cute.ceil_div(cute.size(mQ.shape[0]), self.tile_m)


class FlashAttentionForwardSm100:
    def __init__(self, m_block_size, n_block_size):
        self.cta_tiler = (self.q_stage * m_block_size, n_block_size, self.head_dim)

    def __call__(self, mQ, nheads_kv):
        mQ = pack_gqa_layout(mQ, self.qhead_per_kvhead, nheads_kv, head_idx=2)
        return cute.ceil_div(cute.size(mQ.shape[0]), self.cta_tiler[0])
"""


@cache
def rules(interface: str = INTERFACE, kernels: str = KERNELS) -> dict[str, Rule]:
    """Return the rules and mechanisms of a release with these files."""
    return rules_of({"interface.py": interface, "flash_fwd.py": kernels})


def rules_of(files: dict[str, str]) -> dict[str, Rule]:
    """Return the rules and mechanisms of some files."""
    package = flash_attn_4.PACKAGE
    read = [read_rule(reading, package, "4.0") for reading in flash_attn_4.readings(files)]
    links = [
        mechanism_rule(mechanism, package, "4.0") for mechanism in flash_attn_4.mechanisms(files)
    ]
    return {rule.rule: Rule(rule) for rule in (*read, *links)}
