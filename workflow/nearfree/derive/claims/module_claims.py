"""What the paper's text claims of single modules."""

from nearfree.core.modules.attention import ATTENTION
from nearfree.derive.claims.cases import GRANULAR, PAPER_MODULES, Claim
from nearfree.derive.claims.laws import follows_granularity, predicts, tile_before_idle
from nearfree.derive.claims.mechanism import (
    compute_rises,
    compute_with_batch,
    exceeds_logical,
    steps,
)
from nearfree.derive.claims.regime import flat_then_rising, jumps
from nearfree.derive.claims.scaling import (
    backends_agree,
    balanced_above_skewed,
    constant,
    inverse_batch,
    never_rises,
    real_between,
)

_CURVES = "latencies by N"
_WORK = "executed FLOPs, counted or profiled"

MODULE_CLAIMS = (
    Claim(
        name="flat_then_rising", section="2.2 and 3.2 to 3.4", modules=PAPER_MODULES,
        says="T(N) is nearly flat and then rises: no N up to N_max exceeds the tolerance, N_max "
        "lies above the baseline, and the next N exceeds it.",
        unit="curves", needs=_CURVES, checks=(flat_then_rising(*PAPER_MODULES),),
    ),
    Claim(
        name="latency_jumps", section="3.3, 3.4 and app. on tolerances", modules=GRANULAR,
        says="A block's end is a jump that no tolerance hides: T(N_max + 1) is at least 1.3 times "
        "T(N_max).",
        unit="curves", needs=_CURVES, checks=(jumps(*GRANULAR),),
    ),
    Claim(
        name="idle_mismatch", section="3.3 and 3.4, RQ2", modules=GRANULAR,
        says="Idle compute does not predict MoE FFNs and attention: N_idle lies outside the range "
        "from N_max to the next N of the grid.",
        unit="settings", needs="boundaries and N_idle",
        checks=(predicts(*GRANULAR, wrong=True),),
    ),
    Claim(
        name="dense_inverse_batch", section="3.2, RQ2", modules=("dense_ffn",),
        says="N_max of a dense FFN falls as 1 / b: at every two batch sizes the ranges from N_max "
        "to the next N of the grid, times b, overlap.",
        unit="pairs of batch sizes", needs="boundaries at several batch sizes",
        checks=(inverse_batch,),
    ),
    Claim(
        name="dense_compute_rises", section="3.2, RQ3", modules=("dense_ffn",),
        says="More positions use idle compute: from the baseline to N_max compute use grows by a "
        "larger factor than bandwidth use moves.",
        unit="settings", needs="utilisation over N, counted or profiled", checks=(compute_rises,),
    ),
    Claim(
        name="dense_compute_with_batch", section="3.2, RQ3", modules=("dense_ffn",),
        says="Batching uses the same idle compute: of two batch sizes the larger one uses more of "
        "it at the baseline.",
        unit="pairs of batch sizes", needs="utilisation at several batch sizes",
        checks=(compute_with_batch,),
    ),
    Claim(
        name="moe_balanced_law", section="4.2", modules=("moe_ffn",),
        says="Balanced routing: min(M_moe E / (b k), tau / b) lies between N_max and the next N of "
        "the grid.",
        unit="settings", needs="boundaries of balanced routing, and M_moe",
        checks=(follows_granularity("moe_ffn", "balanced"),),
    ),
    Claim(
        name="moe_falls_with_k", section="3.3 and app. on results", modules=("moe_ffn",),
        says="Balanced routing: N_max is no larger where more experts are taken a token.",
        unit="pairs of k", needs="boundaries of balanced routing at several k",
        checks=(never_rises("moe_ffn", "top_k", routing="balanced"),),
    ),
    Claim(
        name="moe_skewed_is_m_moe", section="4.2", modules=("moe_ffn",),
        says="Skewed routing: M_moe lies between N_max and the next N of the grid, at every k.",
        unit="settings", needs="boundaries of skewed routing, and M_moe",
        checks=(follows_granularity("moe_ffn", "skewed"),),
    ),
    Claim(
        name="moe_skewed_constant", section="app. on results", modules=("moe_ffn",),
        says="Skewed routing: N_max does not grow with sparsity; at every two k the ranges from "
        "N_max to the next N of the grid overlap.",
        unit="pairs of k", needs="boundaries of skewed routing at several k",
        checks=(constant("moe_ffn", "top_k", routing="skewed"),),
    ),
    Claim(
        name="balanced_above_skewed", section="3.3, finding 2", modules=("moe_ffn",),
        says="Balanced routing is the upper bound: its N_max is no smaller than that of skewed "
        "routing at the same k.",
        unit="pairs of routings", needs="boundaries of both routings at one k",
        checks=(balanced_above_skewed,),
    ),
    Claim(
        name="moe_backends_agree", section="app. on results", modules=("moe_ffn",),
        says="The behaviour is not one backend's: vLLM's and SGLang's ranges from N_max to the "
        "next N of the grid overlap at every setting.",
        unit="pairs of backends", needs="boundaries of vLLM and SGLang at the same settings",
        checks=(backends_agree,),
    ),
    Claim(
        name="real_routing_between", section="limitations", modules=("moe_ffn", "model"),
        says="Real routing lies between the two: its N_max is no larger than that of balanced and "
        "no smaller than that of skewed routing.",
        unit="pairs of routings", needs="boundaries of a router or of a power law, beside "
        "balanced or skewed ones", checks=(real_between,),
    ),
    Claim(
        name="attention_constant_over_context", section="3.4, RQ2", modules=(ATTENTION.name,),
        says="Attention's N_max does not depend on L: at every two contexts the ranges from N_max "
        "to the next N of the grid overlap.",
        unit="pairs of contexts", needs="boundaries at several contexts",
        checks=(constant(ATTENTION.name, "context"),),
    ),
    Claim(
        name="attention_is_m_attn", section="4.1 and app. on query tiles",
        modules=(ATTENTION.name,),
        says="Attention's N_max is the query tile: M_attn lies between it and the next N of the "
        "grid.",
        unit="settings", needs="boundaries and M_attn",
        checks=(follows_granularity(ATTENTION.name),),
    ),
    Claim(
        name="tile_before_idle", section="3.4, RQ3", modules=(ATTENTION.name,),
        says="The query tile ends before idle compute does: M_attn is smaller than N_idle.",
        unit="settings", needs="M_attn and N_idle", checks=(tile_before_idle,),
    ),
    Claim(
        name="flops_in_steps", section="3.3 and 3.4, RQ3", modules=GRANULAR,
        says="Executed FLOPs form a staircase: from some N of the grid to the next they stay the "
        "same, from others they rise.",
        unit="curves", needs=_WORK, checks=(steps(*GRANULAR),),
    ),
    Claim(
        name="intensity_in_steps", section="3.3 and 3.4, RQ3", modules=GRANULAR,
        says="Arithmetic intensity changes in steps: from some N of the grid to the next it does "
        "not rise, from others it does.",
        unit="curves", needs="arithmetic intensity, counted or profiled",
        checks=(steps(*GRANULAR, of="intensity_flop_per_byte"),),
    ),
    Claim(
        name="flops_padded", section="3.3, RQ3", modules=GRANULAR,
        says="Kernels do padded work: executed FLOPs are never fewer than the module needs, and "
        "more at some N.",
        unit="curves", needs=_WORK, checks=(exceeds_logical(*GRANULAR),),
    ),
)  # fmt: skip
