"""The paper's three research questions and three findings, as claims."""

from nearfree.core.modules.attention import ATTENTION
from nearfree.derive.claims.cases import GRANULAR, PAPER_MODULES, Claim
from nearfree.derive.claims.laws import follows_granularity, predicts
from nearfree.derive.claims.mechanism import bandwidth_bound, ends_with_block
from nearfree.derive.claims.regime import exists
from nearfree.derive.claims.scaling import balanced_above_skewed, constant, inverse_batch

_BOUNDARIES = "boundaries at the headline tolerance"
_IDLE = "boundaries and N_idle"
_WORK = "executed FLOPs, counted or profiled"
_RQ, _FINDING = "research question", "finding"

QUESTIONS = (
    Claim(
        name="rq1", kind=_RQ, section="3.2 to 3.4, RQ1", modules=PAPER_MODULES,
        says="Is there a near-free range? Yes if N_max, by its whole interval, lies above the "
        "baseline.",
        unit="settings", needs=_BOUNDARIES, checks=(exists(*PAPER_MODULES),),
    ),
    Claim(
        name="rq2", kind=_RQ, section="3.2 to 3.4, RQ2", modules=PAPER_MODULES,
        says="Does idle compute predict the boundary? Yes if N_idle is at least N_max and below "
        "the next N of the grid.",
        unit="settings", needs=_IDLE, checks=(predicts(*PAPER_MODULES),),
    ),
    Claim(
        name="rq2_within_two", kind=_RQ, section="3.2 to 3.4, RQ2", modules=PAPER_MODULES,
        says="Does idle compute predict the size of the boundary? Yes if N_idle is within a factor "
        "of two of the range from N_max to the next N of the grid.",
        unit="settings", needs=_IDLE, checks=(predicts(*PAPER_MODULES, near=True),),
    ),
    Claim(
        name="rq3", kind=_RQ, section="3.2, RQ3", modules=("dense_ffn",),
        says="Is a dense FFN bound by memory at the baseline? Yes if at least half of the "
        "bandwidth is used, and a larger part than of compute.",
        unit="settings", needs="utilisation at the baseline, counted or profiled",
        checks=(bandwidth_bound,),
    ),
    Claim(
        name="rq3", kind=_RQ, section="3.3 and 3.4, RQ3", modules=GRANULAR,
        says="Does padding govern the boundary? Yes if N_max is the last N at which the kernels "
        "execute the FLOPs of the baseline.",
        unit="settings", needs=_WORK, checks=(ends_with_block(*GRANULAR),),
    ),
)  # fmt: skip

FINDINGS = (
    Claim(
        name="finding_1", kind=_FINDING, section="3.2, finding 1", modules=("dense_ffn",),
        says="Dense FFN: N_idle lies between N_max and the next N of the grid, and at every two "
        "batch sizes these ranges, times b, overlap.",
        unit="settings and pairs of batch sizes", needs=_IDLE,
        checks=(predicts("dense_ffn"), inverse_batch),
    ),
    Claim(
        name="finding_2", kind=_FINDING, section="3.3, finding 2", modules=("moe_ffn",),
        says="MoE FFN: the law of expert blocks lies between N_max and the next N of the grid, and "
        "N_max of balanced routing is no smaller than that of skewed routing.",
        unit="settings and pairs of routings", needs="boundaries and M_moe",
        checks=(follows_granularity("moe_ffn"), balanced_above_skewed), across=True,
    ),
    Claim(
        name="finding_3", kind=_FINDING, section="3.4, finding 3", modules=(ATTENTION.name,),
        says="Attention: M_attn lies between N_max and the next N of the grid, and at every two "
        "contexts these ranges overlap.",
        unit="settings and pairs of contexts", needs="boundaries, and M_attn or several contexts",
        checks=(follows_granularity(ATTENTION.name), constant(ATTENTION.name, "context")),
    ),
)  # fmt: skip
