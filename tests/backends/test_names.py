"""Backends as users write them."""

from collections.abc import Callable

import pytest
from decoders.files import CONFIG, refusal
from hypothesis import given
from hypothesis import strategies as st
from nearfree.backends.names import (
    BackendRelease,
    attention_backend,
    backend,
    dense_backend,
    moe_backend,
)
from nearfree.backends.records import BY_NAME, BY_USERS_NAME, backends_of
from nearfree.config.files import Config
from nearfree.core.setting import Module
from nearfree.decoders.ranks.engines import TRTLLM
from nearfree.derive.granularity.releases import ruled_release
from nearfree.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "name", "version"),
    [
        ("flash-attn==2.8.3", "flash_attn", "2.8.3"),
        ("flash_attn", "flash_attn", None),
        ("FlashInfer==0.6.13", "flashinfer_fa2", "0.6.13"),
        ("flashinfer-python==0.6.13", "flashinfer_fa2", "0.6.13"),
        ("flashinfer_fa3", "flashinfer_fa3", None),
        ("xformers==0.0.33", "flash_attn_3", "0.0.33"),
        ("flash_attn_3", "flash_attn_3", None),
        ("vllm==0.20.2", "vllm", "0.20.2"),
        ("vllm-fa3==0.20.2", "vllm_fa3", "0.20.2"),
        ("sglang==0.5.10.post1", "sglang", "0.5.10.post1"),
    ],
)
def test_a_package_is_a_backend(text: str, name: str, version: str | None) -> None:
    """A package's name, or this project's own, gives the backend and its release."""
    assert backend(text) == BackendRelease(name, version)


def test_every_backend_that_a_user_may_name_runs_or_has_rules() -> None:
    """Every name that is given out is a backend of a study, or has rules, tiles or curves alone."""
    expected = {*Config(CONFIG).environments, *backends_of("mla"), TRTLLM.name}
    named = {record.name for record in BY_USERS_NAME.values()}
    assert {name for name in named - expected if not ruled_release(name, "1.0")} == set()
    assert {backend(name).name for name in BY_USERS_NAME} == named


@pytest.mark.parametrize("text", ["", "vllm==", "==1", "vllm=1", "vllm==v1", "vllm==1 2", "a b"])
def test_another_form_is_refused(text: str) -> None:
    """What is no package==version is refused as a whole."""
    with pytest.raises(ConfigError, match="names no backend"):
        backend(text)


def test_the_nearest_backends_are_named() -> None:
    """An unknown package says which known ones are like it."""
    with pytest.raises(ConfigError) as error:
        backend("flash-atn==2.8.3")
    assert "flash-attn" in error.value.remedy


@pytest.mark.parametrize(
    ("read", "module"),
    [(attention_backend, "attention"), (moe_backend, "moe_ffn"), (dense_backend, "gemm")],
)
def test_an_unknown_backend_of_a_module_is_told_those_that_run_it(
    read: Callable[[str], BackendRelease], module: Module
) -> None:
    """What is offered in place of a name is what the option takes, and all of it."""
    with pytest.raises(ConfigError, match="'zz' is not known") as error:
        read("zz")
    given = error.value.remedy.removeprefix("Known are ").split(", ")
    assert all(read(name) for name in given)
    assert {name for record in backends_of(module).values() for name in record.names} <= {*given}


@given(st.text(max_size=100))
def test_any_text_is_a_backend_or_a_config_error(text: str) -> None:
    """No text raises anything but a ConfigError."""
    assert refusal(lambda: backend(text)) or backend(text).name in BY_NAME
