"""Studies: the sweeps of each kind, and axes and grids that cannot be swept."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from derive.tables.logs import copy_config
from hypothesis import given
from hypothesis import strategies as st
from nearfree.config.files import Config
from nearfree.core.label import setting_key
from nearfree.core.modules.registry import STUDIES
from nearfree.core.modules.study import StudyBase
from nearfree.errors import ConfigError

COMMON: dict[str, Any] = {
    "platforms": ["cpu"],
    "positions": [1, 2, 4],
    "protocol": {"name": "interleaved"},
}
DENSE = COMMON | {
    "module": "dense_ffn",
    "backend": "torch",
    "shape": {"d_model": 64, "d_ff": 128},
    "batch": [1, 2],
}
MOE = COMMON | {
    "module": "moe_ffn",
    "backend": "torch_padded",
    "shape": {"d_model": 32, "d_ff": 24, "experts": 8},
    "routing": ["skewed", "balanced"],
    "top_k": [2, 8],
}
ATTENTION = COMMON | {
    "module": "attention",
    "backend": "torch_sdpa",
    "shape": {"heads": 4, "kv_heads": 2, "head_dim": 16},
    "batch": [1, 3],
    "context": [64, 128],
}
KINDS = {"dense": DENSE, "moe": MOE, "attention": ATTENTION}


def study(document: dict[str, Any], **changes: Any) -> StudyBase:
    """Return a study as studies.yaml gives it, with `changes` to its keys."""
    kind: Any = STUDIES
    converted: StudyBase = msgspec.convert(document | changes, kind)
    return converted


def axes(document: dict[str, Any], *names: str) -> list[tuple[Any, ...]]:
    """Return the values of some fields of every setting of a study, in order."""
    return [
        tuple(getattr(setting, name) for name in names) for setting in study(document).settings()
    ]


def test_a_dense_study_sweeps_batch_sizes() -> None:
    """A dense study has one setting for each batch size."""
    assert axes(DENSE, "module", "backend", "batch", "d_model", "d_ff") == [
        ("dense_ffn", "torch", batch, 64, 128) for batch in (1, 2)
    ]


def test_a_dense_study_sweeps_formats_of_weights() -> None:
    """Each format has a setting for each batch size; settings without a format keep their keys."""
    assert axes(DENSE | {"weights": [None, "int8"]}, "weights", "batch") == [
        (None, 1), (None, 2), ("int8", 1), ("int8", 2)
    ]  # fmt: skip
    unspecified, none_named = study(DENSE), study(DENSE, weights=[None])
    assert [setting_key(setting) for setting in unspecified.settings()] == [
        setting_key(setting) for setting in none_named.settings()
    ]


def test_an_moe_study_sweeps_routing_batch_and_k() -> None:
    """An MoE study has a setting for each routing, batch size and k, in that order."""
    assert axes(MOE | {"batch": [1, 4]}, "routing", "batch", "top_k", "experts") == [
        (routing, batch, top_k, 8)
        for routing in ("skewed", "balanced")
        for batch in (1, 4)
        for top_k in (2, 8)
    ]
    assert {setting.block_size_m for setting in study(MOE, block_size_m=4).settings()} == {4}
    uneven = study(MOE, routing=["power_law:1.01", "power_law:1.2"])
    assert [setting.routing for setting in uneven.settings()][:2] == ["power_law:1.01"] * 2
    assert {sweep.baseline for sweep in uneven.sweeps()} == {1}


@pytest.mark.parametrize(
    "routing", ["router", "power_law", "power_law:1.20", "loads:0123456789ab", "power_law:1.2\n"]
)
def test_an_moe_study_runs_no_other_routing(routing: str) -> None:
    """A study's routing is a bound, or a power law by its one name; measured loads are refused."""
    with pytest.raises(msgspec.ValidationError, match="routing"):
        study(MOE, routing=[routing])


def test_an_attention_study_sweeps_batch_and_context() -> None:
    """An attention study has a setting for each batch size and context, called in the same way."""
    assert axes(ATTENTION, "batch", "context", "heads", "kv_heads", "head_dim") == [
        (batch, context, 4, 2, 16) for batch in (1, 3) for context in (64, 128)
    ]
    with_options = study(ATTENTION, api="kvcache", page_size=64, cuda_graph=True)
    assert {
        (setting.api, setting.page_size, setting.cuda_graph) for setting in with_options.settings()
    } == {("kvcache", 64, True)}


@pytest.mark.parametrize("document", KINDS.values(), ids=KINDS)
def test_a_sweep_has_the_studys_grid(document: dict[str, Any]) -> None:
    """Each setting is swept over the study's N, in the study's dtype."""
    sweeps = study(document, positions=[1, 2, 4, 8], dtype="float16").sweeps()
    assert {sweep.positions for sweep in sweeps} == {(1, 2, 4, 8)}
    assert {sweep.setting.dtype for sweep in sweeps} == {"float16"}
    assert len({setting_key(sweep.setting) for sweep in sweeps}) == len(sweeps)


@given(
    st.sets(st.integers(1, 60), min_size=1),
    st.sets(st.integers(1, 60)),
    st.integers(1, 9),
    st.none() | st.integers(1, 300),
)
def test_edges_join_the_grid(
    positions: set[int], edges: set[int], batch: int, tokens_max: int | None
) -> None:
    """Each edge and the N after it join; no point is over the cap but N = 1, and none is lost."""
    (sweep,) = study(
        DENSE,
        batch=[batch],
        positions=sorted(positions | {1}),
        edges=sorted(edges),
        tokens_max=tokens_max,
    ).sweeps()
    candidates = {1} | positions | edges | {edge + 1 for edge in edges}
    expected = {n for n in candidates if tokens_max is None or n * batch <= tokens_max}
    assert sweep.positions == tuple(sorted(expected | {1}))


def test_a_sweep_starts_at_its_own_baseline() -> None:
    """The baseline follows from k and routing, unless the study gives it."""
    sweeps = study(MOE).sweeps()
    assert [sweep.baseline for sweep in sweeps] == [1, 1, 4, 1]
    assert {sweep.baseline for sweep in study(MOE, baseline=2).sweeps()} == {2}


@pytest.mark.parametrize(
    ("document", "changes", "text"),
    [
        (DENSE, {"batch": [1, 2, 1]}, r"batch \[1, 2, 1\] names a value twice"),
        (DENSE, {"weights": [None, None]}, r"weights \[None, None\] names a value twice"),
        (MOE, {"top_k": [2, 2]}, r"top_k \[2, 2\] names a value twice"),
        (MOE, {"routing": ["skewed", "skewed"]}, "routing .* names a value twice"),
        (ATTENTION, {"context": [64, 64]}, r"context \[64, 64\] names a value twice"),
        (ATTENTION, {"positions": [1, 1]}, r"positions \[1, 1\] names a value twice"),
        (DENSE, {"positions": [1, 4, 2]}, r"positions \[1, 4, 2\] are not strictly rising"),
        (DENSE, {"positions": [2, 4]}, r"the grid \[2, 4\] lacks its baseline N=1"),
        (DENSE, {"baseline": 3}, r"the grid \[1, 2, 4\] lacks its baseline N=3"),
        (MOE, {"positions": [1, 2]}, r"the grid \[1, 2\] lacks its baseline N=4"),
        (MOE, {"top_k": [9]}, "top_k 9 is larger than experts 8"),
        (
            ATTENTION,
            {"shape": {"heads": 5, "kv_heads": 2, "head_dim": 16}},
            "heads 5 is no multiple of kv_heads 2",
        ),
    ],
)
def test_an_axis_that_cannot_be_swept_is_refused(
    document: dict[str, Any], changes: dict[str, Any], text: str, tmp_path: Path
) -> None:
    """An axis or grid that cannot be swept is refused by file, entry, field and value."""
    with pytest.raises(ConfigError, match=text):
        study(document, **changes).sweeps()
    with pytest.raises(ConfigError, match=rf"studies\.yaml: odd: {text}") as error:
        load(tmp_path, odd=document | changes)
    assert error.value.remedy


@pytest.mark.parametrize("document", KINDS.values(), ids=KINDS)
def test_an_unknown_key_is_refused_by_name(document: dict[str, Any], tmp_path: Path) -> None:
    """A key that a study or its shape does not have is refused with the file and the entry."""
    with pytest.raises(ConfigError, match=r"studies\.yaml: odd: .*unknown field `colour`"):
        load(tmp_path / "top", odd=document | {"colour": "red"})
    shape = document["shape"] | {"depth": 3}
    with pytest.raises(ConfigError, match=r"studies\.yaml: odd\.shape: .*unknown field `depth`"):
        load(tmp_path / "shape", odd=document | {"shape": shape})


@pytest.mark.parametrize(
    ("document", "key"),
    [
        (DENSE, "top_k"),
        (DENSE, "context"),
        (MOE, "page_size"),
        (MOE, "weights"),
        (ATTENTION, "routing"),
    ],
)
def test_a_key_of_another_module_is_refused(
    document: dict[str, Any], key: str, tmp_path: Path
) -> None:
    """A module has only its own axes: those of another are refused, not ignored."""
    with pytest.raises(ConfigError, match=f"unknown field `{key}`"):
        load(tmp_path, odd=document | {key: [1]})


def test_an_unknown_module_is_refused_by_name(tmp_path: Path) -> None:
    """An unknown module is refused with the file, the entry and its name."""
    with pytest.raises(ConfigError, match=r"studies\.yaml: odd\.module: .*'conv'"):
        load(tmp_path, odd=DENSE | {"module": "conv"})


def load(folder: Path, **studies: dict[str, Any]) -> Config:
    """Return the shipped config with these studies in place of its own."""
    config = Config(copy_config(folder / "config"))
    (config.folder / "studies.yaml").write_text(yaml.safe_dump(studies, sort_keys=False))
    assert list(config.studies) == list(studies)
    return config


def test_sets_choose_studies(tmp_path: Path) -> None:
    """Only studies of the site's sets are measured, each on its platforms; all can be read."""
    studies = {
        "one": DENSE,
        "two": MOE | {"set": "extra"},
        "three": ATTENTION | {"set": "extra", "platforms": ["h20"]},
    }
    chosen = {
        ("default",): (["one"], []),
        ("extra",): (["two"], ["three"]),
        ("default", "extra"): (["one", "two"], ["three"]),
        ("paper",): ([], []),
    }
    for number, (sets, expected) in enumerate(chosen.items()):
        config = load(tmp_path / str(number), **studies)
        path = config.folder / "config.yaml"
        path.write_text(yaml.safe_dump(yaml.safe_load(path.read_text()) | {"sets": list(sets)}))
        assert (config.studied("cpu"), config.studied("h20")) == expected


def test_a_site_without_sets_measures_the_default_set(tmp_path: Path) -> None:
    """A site that names no sets measures the default one, and a study is in it by default."""
    config = load(tmp_path, one=DENSE, two=MOE | {"set": "extra"})
    path = config.folder / "config.yaml"
    site = yaml.safe_load(path.read_text())
    site.pop("sets")
    path.write_text(yaml.safe_dump(site))
    assert config.studied("cpu") == ["one"]
    with pytest.raises(ConfigError, match="no study 'two' on platform 'cpu'"):
        config.study("cpu", "two")
