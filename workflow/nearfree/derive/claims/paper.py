"""The paper's research questions, findings and claims, in the order of the page."""

from functools import partial

from nearfree.core.modules.attention import ATTENTION
from nearfree.derive.claims import curves, generations, laws, models, scaling
from nearfree.derive.claims.cases import GRANULAR, PAPER_MODULES, Claim

_BOUNDARIES = "boundaries at the headline tolerance"
_IDLE = "boundaries and N_idle"
_CURVES = "latencies by N"
_WORK = "executed FLOPs, counted or profiled"
_SWEPT = "boundaries at several tolerances"
_LIMITERS = "models whose modules were timed inside the forward"
_TABLE = "the paper's deployment table"
_RQ, _FINDING = "research question", "finding"
_TOLERANCES = "app. on tolerances"
_MODEL = ("model",)

CLAIMS_CHECKED = (
    Claim(
        name="rq1", kind=_RQ, section="3.2 to 3.4, RQ1", modules=PAPER_MODULES,
        says="Is there a near-free range? Yes if N_max, by its whole interval, lies above the "
        "baseline.",
        unit="settings", needs=_BOUNDARIES, checks=(curves.exists,),
    ),
    Claim(
        name="rq2", kind=_RQ, section="3.2 to 3.4, RQ2", modules=PAPER_MODULES,
        says="Does idle compute predict the boundary? Yes if N_idle is at least N_max and below "
        "the next N of the grid.",
        unit="settings", needs=_IDLE, checks=(laws.predicts,),
    ),
    Claim(
        name="rq2_within_two", kind=_RQ, section="3.2 to 3.4, RQ2", modules=PAPER_MODULES,
        says="Does idle compute predict the size of the boundary? Yes if N_idle is within a factor "
        "of two of the range from N_max to the next N of the grid.",
        unit="settings", needs=_IDLE, checks=(partial(laws.predicts, near=True),),
    ),
    Claim(
        name="rq3", kind=_RQ, section="3.2, RQ3", modules=("dense_ffn",),
        says="Is a dense FFN bound by memory at the baseline? Yes if at least half of the "
        "bandwidth is used, and a larger part than of compute.",
        unit="settings", needs="utilisation at the baseline, counted or profiled",
        checks=(curves.bandwidth_bound,),
    ),
    Claim(
        name="rq3", kind=_RQ, section="3.3 and 3.4, RQ3", modules=GRANULAR,
        says="Does padding govern the boundary? Yes if N_max is the last N at which the kernels "
        "execute the FLOPs of the baseline.",
        unit="settings", needs=_WORK, checks=(curves.ends_with_block,),
    ),
    Claim(
        name="finding_1", kind=_FINDING, section="3.2, finding 1", modules=("dense_ffn",),
        says="Dense FFN: N_idle lies between N_max and the next N of the grid, and at every two "
        "batch sizes these ranges, times b, overlap.",
        unit="settings and pairs of batch sizes", needs=_IDLE,
        checks=(laws.predicts, scaling.inverse_batch),
    ),
    Claim(
        name="finding_2", kind=_FINDING, section="3.3, finding 2", modules=("moe_ffn",),
        says="MoE FFN: the law of expert blocks lies between N_max and the next N of the grid, and "
        "N_max of balanced routing is no smaller than that of skewed routing.",
        unit="settings and pairs of routings", needs="boundaries and M_moe",
        checks=(laws.follows_granularity, scaling.balanced_above_skewed), across="routing",
    ),
    Claim(
        name="finding_3", kind=_FINDING, section="3.4, finding 3", modules=(ATTENTION.name,),
        says="Attention: M_attn lies between N_max and the next N of the grid, and at every two "
        "contexts these ranges overlap.",
        unit="settings and pairs of contexts", needs="boundaries, and M_attn or several contexts",
        checks=(laws.follows_granularity, partial(scaling.constant, varied="context")),
    ),
    Claim(
        name="flat_then_rising", section="2.2 and 3.2 to 3.4", modules=PAPER_MODULES,
        says="T(N) is nearly flat and then rises: no N up to N_max exceeds the tolerance, N_max "
        "lies above the baseline, and the next N exceeds it.",
        unit="curves", needs=_CURVES, checks=(curves.flat_then_rising,),
    ),
    Claim(
        name="latency_jumps", section="3.3, 3.4 and app. on tolerances", modules=GRANULAR,
        says="A block's end is a jump that no tolerance hides: T(N_max + 1) is at least 1.3 times "
        "T(N_max).",
        unit="curves", needs=_CURVES, checks=(curves.jumps,),
    ),
    Claim(
        name="idle_mismatch", section="3.3 and 3.4, RQ2", modules=GRANULAR,
        says="Idle compute does not predict MoE FFNs and attention: N_idle lies outside the range "
        "from N_max to the next N of the grid.",
        unit="settings", needs="boundaries and N_idle",
        checks=(partial(laws.predicts, wrong=True),),
    ),
    Claim(
        name="dense_inverse_batch", section="3.2, RQ2", modules=("dense_ffn",),
        says="N_max of a dense FFN falls as 1 / b: at every two batch sizes the ranges from N_max "
        "to the next N of the grid, times b, overlap.",
        unit="pairs of batch sizes", needs="boundaries at several batch sizes",
        checks=(scaling.inverse_batch,),
    ),
    Claim(
        name="dense_compute_rises", section="3.2, RQ3", modules=("dense_ffn",),
        says="More positions use idle compute: from the baseline to N_max compute use grows by a "
        "larger factor than bandwidth use moves.",
        unit="settings", needs="utilisation over N, counted or profiled",
        checks=(curves.compute_rises,),
    ),
    Claim(
        name="dense_compute_with_batch", section="3.2, RQ3", modules=("dense_ffn",),
        says="Batching uses the same idle compute: of two batch sizes the larger one uses more of "
        "it at the baseline.",
        unit="pairs of batch sizes", needs="utilisation at several batch sizes",
        checks=(curves.compute_with_batch,),
    ),
    Claim(
        name="moe_balanced_law", section="4.2", modules=("moe_ffn",),
        says="Balanced routing: min(M_moe E / (b k), tau / b) lies between N_max and the next N of "
        "the grid.",
        unit="settings", needs="boundaries of balanced routing, and M_moe",
        checks=(partial(laws.follows_granularity, routing="balanced"),),
    ),
    Claim(
        name="moe_falls_with_k", section="3.3 and app. on results", modules=("moe_ffn",),
        says="Balanced routing: N_max is no larger where more experts are taken a token.",
        unit="pairs of k", needs="boundaries of balanced routing at several k",
        checks=(partial(scaling.never_rises, varied="top_k", routing="balanced"),),
    ),
    Claim(
        name="moe_skewed_is_m_moe", section="4.2", modules=("moe_ffn",),
        says="Skewed routing: M_moe lies between N_max and the next N of the grid, at every k.",
        unit="settings", needs="boundaries of skewed routing, and M_moe",
        checks=(partial(laws.follows_granularity, routing="skewed"),),
    ),
    Claim(
        name="moe_skewed_constant", section="app. on results", modules=("moe_ffn",),
        says="Skewed routing: N_max does not grow with sparsity; at every two k the ranges from "
        "N_max to the next N of the grid overlap.",
        unit="pairs of k", needs="boundaries of skewed routing at several k",
        checks=(partial(scaling.constant, varied="top_k", routing="skewed"),),
    ),
    Claim(
        name="balanced_above_skewed", section="3.3, finding 2", modules=("moe_ffn",),
        says="Balanced routing is the upper bound: its N_max is no smaller than that of skewed "
        "routing at the same k.",
        unit="pairs of routings", needs="boundaries of both routings at one k",
        checks=(scaling.balanced_above_skewed,), across="routing",
    ),
    Claim(
        name="moe_backends_agree", section="app. on results", modules=("moe_ffn",),
        says="The behaviour is not one backend's: vLLM's and SGLang's ranges from N_max to the "
        "next N of the grid overlap at every setting.",
        unit="pairs of backends", needs="boundaries of vLLM and SGLang at the same settings",
        checks=(scaling.backends_agree,), across="backend",
    ),
    Claim(
        name="real_routing_between", section="limitations", modules=("moe_ffn", "model"),
        says="Real routing lies between the two: its N_max is no larger than that of balanced and "
        "no smaller than that of skewed routing.",
        unit="pairs of routings", needs="boundaries of a router or of a power law, beside "
        "balanced or skewed ones", checks=(scaling.real_between,),
    ),
    Claim(
        name="attention_constant_over_context", section="3.4, RQ2", modules=(ATTENTION.name,),
        says="Attention's N_max does not depend on L: at every two contexts the ranges from N_max "
        "to the next N of the grid overlap.",
        unit="pairs of contexts", needs="boundaries at several contexts",
        checks=(partial(scaling.constant, varied="context"),),
    ),
    Claim(
        name="attention_is_m_attn", section="4.1 and app. on query tiles",
        modules=(ATTENTION.name,),
        says="Attention's N_max is the query tile: M_attn lies between it and the next N of the "
        "grid.",
        unit="settings", needs="boundaries and M_attn",
        checks=(laws.follows_granularity,),
    ),
    Claim(
        name="tile_before_idle", section="3.4, RQ3", modules=(ATTENTION.name,),
        says="The query tile ends before idle compute does: M_attn is smaller than N_idle.",
        unit="settings", needs="M_attn and N_idle", checks=(laws.tile_before_idle,),
    ),
    Claim(
        name="flops_in_steps", section="3.3 and 3.4, RQ3", modules=GRANULAR,
        says="Executed FLOPs form a staircase: from some N of the grid to the next they stay the "
        "same, from others they rise.",
        unit="curves", needs=_WORK, checks=(curves.steps,),
    ),
    Claim(
        name="intensity_in_steps", section="3.3 and 3.4, RQ3", modules=GRANULAR,
        says="Arithmetic intensity changes in steps: from some N of the grid to the next it does "
        "not rise, from others it does.",
        unit="curves", needs="arithmetic intensity, counted or profiled",
        checks=(partial(curves.steps, column="intensity_flop_per_byte"),),
    ),
    Claim(
        name="flops_padded", section="3.3, RQ3", modules=GRANULAR,
        says="Kernels do padded work: executed FLOPs are never fewer than the module needs, and "
        "more at some N.",
        unit="curves", needs=_WORK, checks=(curves.exceeds_logical,),
    ),
    Claim(
        name="tolerance_same", section=_TOLERANCES, modules=("moe_ffn",),
        says="The tolerance hardly matters to MoE FFNs: balanced routing has one boundary from 5 % "
        "to 30 %, and skewed routing one from 10 % to 30 %.",
        unit="settings", needs=_SWEPT, checks=(scaling.same_routed,),
    ),
    Claim(
        name="tolerance_same_long_context", section=_TOLERANCES, modules=(ATTENTION.name,),
        says="Attention over a long context has one boundary at every tolerance from 5 % to 30 %: "
        "from L = 4096.",
        unit="settings", needs=f"{_SWEPT}, from L = 4096",
        checks=(partial(scaling.same_n, context=4096),),
    ),
    Claim(
        name="tolerance_dense_one_step", section=_TOLERANCES, modules=("dense_ffn",),
        says="The boundary of a dense FFN moves by at most one step of the grid, or a factor of "
        "two where the grid is finer, from 5 % to 30 %.",
        unit="settings", needs=_SWEPT, checks=(scaling.one_step,),
    ),
    Claim(
        name="tolerance_10_to_30", section=_TOLERANCES, modules=PAPER_MODULES,
        says="Tolerances from 10 % to 30 % give consistent boundaries: at most one step of the "
        "grid, or a factor of two where the grid is finer, apart.",
        unit="settings", needs=_SWEPT, checks=(partial(scaling.one_step, least=0.0999),),
    ),
    Claim(
        name="tolerance_inverse_batch", section=_TOLERANCES, modules=("dense_ffn",),
        says="N_max of a dense FFN falls as 1 / b at every tolerance: at every two batch sizes the "
        "ranges from N_max to the next N of the grid, times b, overlap.",
        unit="pairs of batch sizes", needs="boundaries at several batch sizes",
        checks=(scaling.inverse_batch_anywhere,),
    ),
    Claim(
        name="tolerance_monotone", section="2.2", modules=PAPER_MODULES,
        says="By its definition N_max never falls where the tolerance grows.",
        unit="settings", needs=_SWEPT, checks=(scaling.never_falls,),
    ),
    Claim(
        name="model_minimum", section="4", modules=_MODEL,
        says="A model's boundary is the minimum of its modules': that minimum lies between N_max "
        "and the next N of the grid.",
        unit="settings", needs="models whose modules were measured, too",
        checks=(models.minimum,),
    ),
    Claim(
        name="model_principle", section="5.1 and 5.2", modules=_MODEL,
        says="The principle predicts whole models: it lies between N_max and the next N of the "
        "grid.",
        unit="settings", needs="models that the principle answers", checks=(models.law,),
    ),
    Claim(
        name="model_limiter", section="5.2", modules=_MODEL,
        says="The principle names the module that limits: the one whose time grows most up to the "
        "N after the boundary.",
        unit="settings", needs=_LIMITERS, checks=(models.names_limiter,),
    ),
    Claim(
        name="model_limiter_shifts", section="5.2 and app. on models", modules=_MODEL,
        says="With longer contexts the limit of an MoE model moves from the MoE FFN to attention: "
        "the one at the shortest L, the other at the longest.",
        unit="series of contexts", needs=f"MoE {_LIMITERS}, at several contexts",
        checks=(models.limiter_shifts,),
    ),
    Claim(
        name="model_short_context", section="app. on models", modules=_MODEL,
        says="Up to L = 512 a dense model's boundary hardly depends on L: at every two contexts "
        "the ranges from N_max to the next N of the grid overlap.",
        unit="pairs of contexts", needs="dense models at several contexts up to 512",
        checks=(partial(scaling.constant, varied="context", most=512),),
    ),
    Claim(
        name="model_falls_with_batch", section="app. on models", modules=_MODEL,
        says="A dense model's N_max is no larger where the batch is.",
        unit="pairs of batch sizes", needs="dense models at several batch sizes",
        checks=(partial(scaling.never_rises, varied="batch"),),
    ),
    Claim(
        name="model_falls_with_k", section="app. on models", modules=_MODEL,
        says="Balanced routing: a model's N_max is no larger where more experts are taken a token.",
        unit="pairs of k", needs="MoE models at several k",
        checks=(partial(scaling.never_rises, varied="top_k", routing="balanced"),),
    ),
    Claim(
        name="idle_up_to_23", section="abstract, 6 and app. on implications", public=True,
        says="Idle compute over-predicts by up to 23 times: the largest N_idle / principle of the "
        "deployment table, recomputed, rounds to 23.",
        unit="tables", needs=_TABLE, checks=(generations.up_to_23,),
    ),
    Claim(
        name="idle_over_in_most", section="app. on implications", public=True,
        says="Idle compute over-predicts by 2.4 times or more in over half of the deployment "
        "table's rows.",
        unit="tables", needs=_TABLE, checks=(generations.most_over_predicted,),
    ),
    Claim(
        name="lookup_follows", section="app. on implications", public=True,
        says="Each row of the deployment table is what its formulas give, rounded as printed.",
        unit="rows", needs=_TABLE, checks=(generations.formulas_match_print,),
    ),
    Claim(
        name="lookup_holds_for_releases", section="not in the paper", public=True,
        says="A check of ours: the deployment table's principle is the same with the "
        "granularities that releases take at the shapes of the evaluated models.",
        unit="rows", needs=f"{_TABLE}, and releases' rules",
        checks=(generations.holds_for_releases,),
    ),
    Claim(
        name="balance_grows", section="app. on future hardware", public=True,
        modules=("dense_ffn",), unit="pairs of platforms", needs="datasheets",
        says="rho grows over GPU generations: of two platforms the one of the later year has the "
        "larger rho, at one element type.",
        checks=(partial(generations.grows, column="balance_flop_per_byte", symbol="rho "),),
    ),
    Claim(
        name="dense_boundary_grows", section="app. on future hardware", public=True,
        modules=("dense_ffn",), unit="pairs of platforms", needs="datasheets",
        says="With it the dense boundary rho s / (2 b) grows: of two platforms the one of the "
        "later year has the larger one, at one element type.",
        checks=(partial(generations.grows, column="n_max"),),
    ),
    Claim(
        name="tile_stays", section="app. on future hardware", public=True,
        modules=(ATTENTION.name,), unit="pairs of platforms", needs="M_attn on several platforms",
        says="M_attn belongs to the backend: it is the same on every two platforms, for one "
        "backend, version and element type.",
        checks=(generations.tile_stays,),
    ),
)  # fmt: skip
"""All claims that are checked."""
