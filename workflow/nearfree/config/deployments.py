"""The deployments of deployments.yaml: which models, platforms and conditions are asked about."""

from typing import Annotated, Literal

from msgspec import Meta, Struct

from nearfree.core.setting import Dtype, Name

Bound = Literal["balanced", "skewed"]
"""The two controlled routings, between which any real one lies (paper, app. C.3)."""
BOUNDS: tuple[Bound, ...] = ("balanced", "skewed")
Text = Annotated[str, Meta(min_length=1, max_length=200)]
Texts = Annotated[tuple[Text, ...], Meta(min_length=1)]
Small = Annotated[int, Meta(ge=1, lt=1_000_000)]
Listed = Annotated[tuple[Small, ...], Meta(min_length=1)]


class DeploymentSpec(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Deployments, one for each combination of what is listed.

    `models` are names under config/models or paths of files, `attention` and `moe` releases as
    package==version, or packages alone for the newest recorded release. `batch` is b, `context` L;
    `moe` and `routing` count where a model has experts. `drawn` says whether figures show them.
    """

    models: Texts
    platforms: Annotated[tuple[Name, ...], Meta(min_length=1)]
    attention: Texts = ("flash-attn",)
    moe: Texts = ("vllm",)
    batch: Listed = (1,)
    context: Listed = (4096,)
    routing: Annotated[tuple[Bound, ...], Meta(min_length=1)] = BOUNDS
    dtype: Dtype | None = None
    drawn: bool = True
