"""Which release ran a measured setting."""

import polars as pl
from conftest import make_plan, make_started
from msgspec import structs
from nearfree.derive.predict.installed_release import release_of, releases_that_ran
from nearfree.log.events import RunFinished

from derive.tables.logs import make_take

VERSIONS = {"vllm": "0.20.2", "flash-attn": "2.8.3", "flashinfer-python": "0.5.3", "torch": "2.11"}


def test_a_backend_is_of_the_package_that_was_installed() -> None:
    """Each backend names its package, however the index spells it; torch has no release here."""
    assert release_of("vllm", VERSIONS) == "0.20.2"
    assert release_of("flash_attn", VERSIONS) == "2.8.3"
    assert release_of("flashinfer_fa3", VERSIONS) == "0.5.3"
    assert release_of("torch_sdpa", VERSIONS) is None
    assert release_of("sglang", VERSIONS) is None


def test_a_backend_of_the_paper_s_tables_names_its_own() -> None:
    """A backend that no adapter runs has no version of a run."""
    assert release_of("vllm_0_9_1", VERSIONS) is None


def test_a_setting_has_the_release_of_its_own_take() -> None:
    """The version is that of the take which first speaks of the setting; others have none."""
    started = structs.replace(make_started(make_plan()), versions=VERSIONS)
    take = make_take(started, RunFinished(outcome="complete", wall_s=1.0))
    settings = pl.DataFrame(
        {
            "row_id": ["settings:1", "settings:2"],
            "backend": ["vllm", "vllm"],
            "from_ids": [[f"{take.name}.1#7"], ["public/other/1-00000000.1#2"]],
        }
    )
    found = releases_that_ran(settings, [take])
    assert found.rows() == [("settings:1", "0.20.2"), ("settings:2", None)]
