"""SGLang's fused experts: each call bound against the signatures that real releases have."""

from collections import namedtuple
from collections.abc import Callable
from functools import partial
from inspect import Signature
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace
from nearfree.backends.adapters import sglang_moe
from nearfree.backends.adapters.kernel import ExecutionContext
from nearfree.backends.adapters.sglang_moe import SglangMoe
from nearfree.backends.records import BY_NAME
from nearfree.errors import EvidenceError, SourceError
from nearfree.sources.fetching.cache import Cache

from backends.adapters.moe_engine import (
    ASSERTED,
    ASSERTED_OF_PACKED,
    NAMES,
    SETTING,
    asserted,
    check_forwards,
    make_engine,
    module_names,
    put,
    third_results,
)
from backends.adapters.signatures import (
    StandIn,
    bring,
    change_points,
    signature,
    signature_of,
    stand_in,
    versions_between,
)

NEW, OLD = "layers.moe.moe_runner.triton_utils", "layers.moe.fused_moe_triton"
FIRST, LAST = BY_NAME["sglang"].releases or ("", "")
FILES = ("fused_moe", "fused_moe_triton_config", "moe_align_block_size")
OTHER_MODULES = {
    "StandardTopKOutput": "layers.moe.topk",
    "TopKOutput": "layers.moe.topk",
    "MoeRunnerConfig": "layers.moe.moe_runner",
    "set_global_server_args_for_scheduler": "server_args",
    "model_parallel_is_initialized": "distributed.parallel_state",
    "init_distributed_environment": "distributed.parallel_state",
    "initialize_model_parallel": "distributed.parallel_state",
}
"""What else the adapter calls, and where it imports that from."""


def path(module: str) -> str:
    """Return a module's file in a release."""
    return f"sglang/srt/{module.replace('.', '/')}.py"


LAUNCHERS = tuple(path(f"{folder}.{name}") for folder in (NEW, OLD) for name in FILES)
BASE = path("layers.moe.moe_runner.base")
MEMBERS = (*LAUNCHERS, BASE, *(path(module) for module in dict.fromkeys(OTHER_MODULES.values())))
OLDEST = """
def fused_experts(hidden_states, w1, w2, topk_weights, topk_ids, inplace=False, activation='silu'):
    pass
def try_get_optimal_moe_config(w1_shape, w2_shape, top_k, dtype, M, is_marlin=False):
    pass
def get_moe_configs(E, N, dtype, block_n=0, block_k=0):
    pass
"""
NEWEST = """
def fused_experts(hidden_states, w1, w2, topk_output, moe_runner_config, b1=None, b2=None):
    pass
def try_get_optimal_moe_config(w1_shape, w2_shape, top_k, dtype, M, return_down_config=False):
    pass
def get_moe_configs(E, N, dtype, block_n=0, block_k=0, down_moe=False):
    pass
class StandardTopKOutput:
    topk_weights: int
    topk_ids: int
    router_logits: int
class MoeRunnerConfig:
    num_experts: int = None
    num_local_experts: int = None
    activation: str = 'silu'
    inplace: bool = True
def set_global_server_args_for_scheduler(server_args):
    pass
def model_parallel_is_initialized():
    pass
def init_distributed_environment(world_size=-1, rank=-1, distributed_init_method='', local_rank=-1):
    pass
def initialize_model_parallel(backend=None):
    pass
"""


def signatures_in(text: str) -> dict[str, Signature]:
    """Return the signatures that a text defines, of the names that the adapter uses."""
    signatures = {}
    for name in (*NAMES, *OTHER_MODULES):
        try:
            signatures[name] = signature_of(text, name)
        except LookupError:
            continue
    return signatures


class Release:
    """A stand-in for an installed release: its modules by name, and the functions that it has."""

    def __init__(self, signatures: dict[str, Signature], folder: str, imported: set[str]) -> None:
        self.modules: dict[str, ModuleType] = {}
        launcher = self.module(f"{folder}.fused_moe")
        chooser = launcher if folder == OLD else self.module(f"{folder}.fused_moe_triton_config")
        put(launcher, **dict.fromkeys(imported))
        self.fused = make_engine(launcher, chooser, signatures)
        self.called: dict[str, StandIn] = {}
        for name, module in OTHER_MODULES.items():
            if name in signatures:
                function = stand_in(signatures[name], self.result(name))
                self.called[name] = function
                put(self.module(module), **{name: function})
        self.called["ServerArgs"] = stand_in(
            signature_of("def f(model_path): pass", "f"), lambda bound: bound.args[0]
        )
        put(self.module("server_args"), ServerArgs=self.called["ServerArgs"])

    def module(self, name: str) -> ModuleType:
        """Return a module by name, made when first asked for."""
        return self.modules.setdefault(name, ModuleType(name))

    def result(self, name: str) -> Any:
        """Return what a stand-in answers: an object with the arguments that it was made of."""
        if name.endswith("TopKOutput"):
            routed = namedtuple("routed", "topk_weights topk_ids router_logits")
            return lambda bound: routed(**bound.arguments)
        if name == "MoeRunnerConfig":
            return lambda bound: SimpleNamespace(**bound.arguments)
        return lambda _: None

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Let it be what is installed."""
        monkeypatch.setattr(sglang_moe, "sglang_module", self.modules.get)
        monkeypatch.setattr(sglang_moe, "version", lambda _: "1.2.3")

    def kernel(self, monkeypatch: pytest.MonkeyPatch) -> SglangMoe:
        """Return the adapter on this release."""
        self.install(monkeypatch)
        return SglangMoe(replace(SETTING, backend="sglang"), (1, 5), ExecutionContext(sms=8))


def check(release: Release, monkeypatch: pytest.MonkeyPatch) -> SglangMoe:
    """Run a release's calls, and assert that nothing is written in execution or filtered."""
    kernel = release.kernel(monkeypatch)
    check_forwards(kernel, release.fused, SETTING)
    arguments = release.fused.calls[0].arguments
    if "moe_runner_config" in arguments:
        config = vars(arguments["moe_runner_config"])
        assert config.pop("inplace") is False
        assert config in ({}, {"num_experts": 16, "num_local_experts": 16})
    else:
        assert arguments["inplace"] is False
    return kernel


def test_the_oldest_form(monkeypatch: pytest.MonkeyPatch) -> None:
    """Old releases take weights and ids one by one, and nothing has to be prepared."""
    release = Release(signatures_in(OLDEST), OLD, set())
    kernel = check(release, monkeypatch)
    assert not release.called["ServerArgs"].calls
    assert kernel.work(5).basis == "sglang==1.2.3, default config, aligned to blocks"


def test_the_newest_form(monkeypatch: pytest.MonkeyPatch) -> None:
    """New releases take one routing object and a config, after arguments and a group are set."""
    at_exit = list[Callable[[], None]]()

    def register(*args: Any, **kwargs: Any) -> None:
        at_exit.append(partial(*args, **kwargs))

    monkeypatch.setattr(sglang_moe.atexit, "register", register)
    release = Release(signatures_in(NEWEST), NEW, {"get_exec", "use_symmetric_memory"})
    check(release, monkeypatch)
    release.kernel(monkeypatch)
    (published,) = release.called["set_global_server_args_for_scheduler"].calls
    assert published.args == ("dummy",)
    (group,) = release.called["init_distributed_environment"].calls
    assert (group.arguments["world_size"], group.arguments["rank"]) == (1, 0)
    folder = Path(group.arguments["distributed_init_method"].removeprefix("file://")).parent
    assert folder.is_dir()
    (leaving,) = at_exit
    leaving()
    assert not folder.exists()
    assert len(release.called["initialize_model_parallel"].calls) == 1


def test_a_down_config_is_left_aside(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the engine chooses a config for each projection, blocks are those of the first."""
    release = Release(signatures_in(NEWEST), NEW, set())
    launcher = release.modules[f"{NEW}.fused_moe"]
    chosen = launcher.try_get_optimal_moe_config
    two_configs = stand_in(chosen.__signature__, lambda bound: (chosen(*bound.args), (None, None)))
    kernel = release.kernel(monkeypatch)
    put(launcher, try_get_optimal_moe_config=two_configs)
    release.fused._result = lambda bound: (
        launcher.try_get_optimal_moe_config(
            bound.arguments["w1"].shape, bound.arguments["w2"].shape, 2, None, 10
        ),
        bound.arguments["hidden_states"],
    )[1]
    work = kernel.work(5)
    assert (work.block_rows, work.basis) == (
        4,
        "sglang==1.2.3, default config, a block a pair",
    )


def test_an_unknown_release_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """A release that keeps its fused MoE elsewhere is refused, with the range that is known."""
    monkeypatch.setattr(sglang_moe, "sglang_module", {}.get)
    with pytest.raises(EvidenceError, match="none of the known places") as error:
        SglangMoe(SETTING, (1,), ExecutionContext())
    assert LAST in error.value.remedy


def test_a_missing_package_is_not_a_missing_module(monkeypatch: pytest.MonkeyPatch) -> None:
    """An import error within sglang is raised; a missing module gives None."""

    def lacking(name: str) -> None:
        raise ModuleNotFoundError(name=missing)

    monkeypatch.setattr(sglang_moe, "import_module", lacking)
    missing = "sglang.srt.layers.moe"
    assert sglang_moe.sglang_module("layers.moe.topk") is None
    missing = "triton"
    with pytest.raises(ModuleNotFoundError):
        sglang_moe.sglang_module("layers.moe.topk")


def read(version: str, cache: Cache) -> tuple[dict[str, Signature], str, set[str]]:
    """Return a release's signatures, its folder, and which names its modules import."""
    source = bring("sglang", version, MEMBERS, cache)
    folder = NEW if path(f"{NEW}.fused_moe") in source.files else OLD
    signatures = {name: signature("sglang", version, LAUNCHERS, name, cache) for name in NAMES}
    for name, module in OTHER_MODULES.items():
        member = BASE if name == "MoeRunnerConfig" else path(module)
        try:
            signatures[name] = signature_of(source.text(member), name)
        except (LookupError, SourceError):  # an older release has no such name or file
            continue
    texts = [source.text(launcher) for launcher in LAUNCHERS if launcher in source.files]
    return signatures, folder, set().union(*map(module_names, texts))


@pytest.mark.slow
def test_each_form_of_the_call_is_bound(
    monkeypatch: pytest.MonkeyPatch, source_cache: Cache
) -> None:
    """In the first and last release, and each with another signature, the calls bind and run."""
    versions = versions_between("sglang", FIRST, LAST)
    points = {
        version
        for name in (*NAMES, *OTHER_MODULES)
        for version in change_points("sglang", versions, MEMBERS, name, source_cache)
    }
    assert {FIRST, "0.4.9.post3", "0.5.1", LAST} <= points
    watched = {"get_global_server_args", "get_server_args", "get_exec", "use_symmetric_memory"}
    for version in sorted(points):
        signatures, folder, imported = read(version, source_cache)
        release = Release(signatures, folder, watched & imported)
        check(release, monkeypatch)
        published = release.called.get("set_global_server_args_for_scheduler")
        assert bool(published and published.calls) == bool(
            imported & {"get_global_server_args", "get_server_args", "get_exec"}
        )
        if "use_symmetric_memory" in imported:
            assert len(release.called["initialize_model_parallel"].calls) == 1


@pytest.mark.slow
def test_every_release_can_be_watched_and_takes_these_tensors(source_cache: Cache) -> None:
    """Each release looks the watched names up in its modules, and asserts nothing unknown."""
    for version in versions_between("sglang", FIRST, LAST):
        source = bring("sglang", version, MEMBERS, source_cache)
        texts = [source.text(launcher) for launcher in LAUNCHERS if launcher in source.files]
        assert module_names(texts[0]) >= {
            "fused_experts",
            "try_get_optimal_moe_config",
            "moe_align_block_size",
        }, version
        assert any("def get_moe_configs" in text for text in texts[:2])
        assert set().union(*map(third_results, texts)) == {"num_tokens_post_pad"}, version
        assertions = asserted(texts[0])
        assert "hidden_states.is_contiguous()" in assertions
        assert assertions <= ASSERTED | ASSERTED_OF_PACKED, version


@pytest.mark.slow
def test_a_dummy_model_path_means_arguments_without_a_model(source_cache: Cache) -> None:
    """Each release that reads server arguments stops resolving them at a `dummy` model path."""
    members = (path("server_args"), path("arg_groups.pipeline"))
    for version in versions_between("sglang", "0.5.4.post2", LAST):
        source = bring("sglang", version, members, source_cache)
        condition = 'model_path.lower() in ["none", "dummy"]'
        assert any(condition in source.text(path_) for path_ in source.paths()), version
