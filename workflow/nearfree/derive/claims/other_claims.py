"""What the paper's text claims of tolerances, whole models, its deployment table and hardware."""

from nearfree.core.modules.attention import ATTENTION
from nearfree.derive.claims import generations, models
from nearfree.derive.claims.cases import PAPER_MODULES, Claim
from nearfree.derive.claims.scaling import constant, inverse_batch_anywhere, never_rises
from nearfree.derive.claims.tolerance import never_falls, one_step, same_n, same_routed

_TOLERANCES = "app. on tolerances"
_SWEPT = "boundaries at several tolerances"
_MODEL = ("model",)
_LIMITERS = "models whose modules were timed inside the forward"
_TABLE = "the paper's deployment table"
_SHORT = 512

TOLERANCE_CLAIMS = (
    Claim(
        name="tolerance_same", section=_TOLERANCES, modules=("moe_ffn",),
        says="The tolerance hardly matters to MoE FFNs: balanced routing has one boundary from 5 % "
        "to 30 %, and skewed routing one from 10 % to 30 %.",
        unit="settings", needs=_SWEPT, checks=(same_routed,),
    ),
    Claim(
        name="tolerance_same_long_context", section=_TOLERANCES, modules=(ATTENTION.name,),
        says="Attention over a long context has one boundary at every tolerance from 5 % to 30 %: "
        "from L = 4096.",
        unit="settings", needs=f"{_SWEPT}, from L = 4096",
        checks=(same_n(ATTENTION.name, context=4096),),
    ),
    Claim(
        name="tolerance_dense_one_step", section=_TOLERANCES, modules=("dense_ffn",),
        says="The boundary of a dense FFN moves by at most one step of the grid, or a factor of "
        "two where the grid is finer, from 5 % to 30 %.",
        unit="settings", needs=_SWEPT, checks=(one_step("dense_ffn"),),
    ),
    Claim(
        name="tolerance_10_to_30", section=_TOLERANCES, modules=PAPER_MODULES,
        says="Tolerances from 10 % to 30 % give consistent boundaries: at most one step of the "
        "grid, or a factor of two where the grid is finer, apart.",
        unit="settings", needs=_SWEPT, checks=(one_step(*PAPER_MODULES, least=0.0999),),
    ),
    Claim(
        name="tolerance_inverse_batch", section=_TOLERANCES, modules=("dense_ffn",),
        says="N_max of a dense FFN falls as 1 / b at every tolerance: at every two batch sizes the "
        "ranges from N_max to the next N of the grid, times b, overlap.",
        unit="pairs of batch sizes", needs="boundaries at several batch sizes",
        checks=(inverse_batch_anywhere,),
    ),
    Claim(
        name="tolerance_monotone", section="2.2", modules=PAPER_MODULES,
        says="By its definition N_max never falls where the tolerance grows.",
        unit="settings", needs=_SWEPT, checks=(never_falls(*PAPER_MODULES),),
    ),
)  # fmt: skip

MODEL_CLAIMS = (
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
        checks=(constant("model", "context", most=_SHORT),),
    ),
    Claim(
        name="model_falls_with_batch", section="app. on models", modules=_MODEL,
        says="A dense model's N_max is no larger where the batch is.",
        unit="pairs of batch sizes", needs="dense models at several batch sizes",
        checks=(never_rises("model", "batch"),),
    ),
    Claim(
        name="model_falls_with_k", section="app. on models", modules=_MODEL,
        says="Balanced routing: a model's N_max is no larger where more experts are taken a token.",
        unit="pairs of k", needs="MoE models at several k",
        checks=(never_rises("model", "top_k", routing="balanced"),),
    ),
)  # fmt: skip

PUBLIC_CLAIMS = (
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
        unit="tables", needs=_TABLE, checks=(generations.most_over,),
    ),
    Claim(
        name="lookup_follows", section="app. on implications", public=True,
        says="Each row of the deployment table is what its formulas give, rounded as printed.",
        unit="rows", needs=_TABLE, checks=(generations.reprints,),
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
        checks=(generations.balance_grows,),
    ),
    Claim(
        name="dense_boundary_grows", section="app. on future hardware", public=True,
        modules=("dense_ffn",), unit="pairs of platforms", needs="datasheets",
        says="With it the dense boundary rho s / (2 b) grows: of two platforms the one of the "
        "later year has the larger one, at one element type.",
        checks=(generations.boundary_grows,),
    ),
    Claim(
        name="tile_stays", section="app. on future hardware", public=True,
        modules=(ATTENTION.name,), unit="pairs of platforms", needs="M_attn on several platforms",
        says="M_attn belongs to the backend: it is the same on every two platforms, for one "
        "backend, version and element type.",
        checks=(generations.tile_stays,),
    ),
)  # fmt: skip
