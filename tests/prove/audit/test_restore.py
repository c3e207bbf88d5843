"""A ledger's config and takes are restored as they were, or refused by name."""

from pathlib import Path

import pytest
from conftest import write_take
from derive.tables.logs import CONFIG
from nearfree.errors import ConfigError, DamageError, EvidenceError
from nearfree.log.ledger import Ledger, config_texts, current_seals, seals_root, write_ledger
from nearfree.log.line import GENESIS
from nearfree.log.names import Layout
from nearfree.log.retract import retract
from nearfree.prove.audit.ledgers import NamedLedger
from nearfree.prove.audit.recompute import scratch_root
from nearfree.prove.audit.restore import restore


def named(config: dict[str, str], seals: dict[str, str] | None = None) -> NamedLedger:
    """Return a ledger of a config and of seals, by default none."""
    seals = seals or {}
    ledger = Ledger(
        number=1, time="", previous=GENESIS, root=seals_root(seals), seals=seals, config=config,
        code_digest="", libraries={},
    )  # fmt: skip
    return NamedLedger("1", ledger)


def test_a_config_comes_back_as_it_was(layout: Layout, tmp_path: Path) -> None:
    """The shipped config is restored byte for byte; its engines' studies name weights, not models.

    Models of its deployments, studies and random weights are all among its own files.
    """
    texts = config_texts(CONFIG)
    pipeline = restore(layout, named(texts), tmp_path / "into")
    assert pipeline.layout.takes() == []
    assert config_texts(tmp_path / "into" / "config") == texts


@pytest.mark.parametrize(
    ("file", "change"),
    [
        ("deployments.yaml", ("models: [qwen3_8b]", "models: [outside]")),
        ("studies.yaml", ("model: wedlm_8b_cpu", "model: outside")),
        ("weights.yaml", ("config: llama_3_2_1b,", "config: outside,")),
    ],
)
def test_a_model_is_one_of_the_ledger(
    layout: Layout,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    file: str,
    change: tuple[str, str],
) -> None:
    """A model file that lies where the command runs, and not in the ledger, is refused by name."""
    model = (CONFIG / "models" / "qwen3_8b.json").read_bytes()
    (tmp_path / "outside").write_bytes(model)
    monkeypatch.chdir(tmp_path)
    texts = config_texts(CONFIG)
    assert change[0] in texts[file]
    texts[file] = texts[file].replace(*change)
    with pytest.raises(ConfigError, match="ledger 1 does not hold the model file 'outside'"):
        restore(layout, named(texts), tmp_path / "into")


@pytest.mark.parametrize(
    ("studies", "message"),
    [(None, "cannot be read"), ("[1]", "studies.yaml"), ("some: 1", "studies.yaml: some")],
)
def test_studies_that_are_none_are_refused(
    layout: Layout, tmp_path: Path, studies: str | None, message: str
) -> None:
    """A ledger without studies, or with something else in their file, is refused by that file."""
    texts = {name: text for name, text in config_texts(CONFIG).items() if name != "studies.yaml"}
    texts |= {} if studies is None else {"studies.yaml": studies}
    with pytest.raises(
        ConfigError, match=f"config of ledger 1 does not fit this code: .*{message}"
    ):
        restore(layout, named(texts), tmp_path / "into")


def test_a_scope_without_takes_has_no_tables(layout: Layout, tmp_path: Path) -> None:
    """Of platforms, releases and imports that a config names, those without takes are left out."""
    texts = config_texts(CONFIG)
    texts["config.yaml"] = texts["config.yaml"].replace(
        "imports: []", "imports: [aiconfigurator==0.12.0]"
    )
    pipeline = restore(layout, named(texts), tmp_path / "into")
    assert pipeline.config.releases
    assert pipeline.site.here == ("cpu",)
    assert pipeline.site.imports == ("aiconfigurator==0.12.0",)
    assert (pipeline.platforms, pipeline.sources, pipeline.imported) == ([], [], [])


@pytest.mark.parametrize("some", [True, False])
def test_a_scratch_root_holds_links_to_sealed_takes(
    layout: Layout, tmp_path: Path, *, some: bool
) -> None:
    """Seals and segments of the chosen takes, by default of all, are links; nothing else is there.

    What a take has besides, such as an attempt without a seal, is not linked.
    """
    first, second = (write_take(layout, take=take).name for take in (1, 2))
    layout.segment(first, 2).write_bytes(b"not sealed")
    (tmp_path / "here").symlink_to(layout.root)
    scratch = scratch_root(Layout(tmp_path / "here"), tmp_path / "into", [second] if some else None)
    assert scratch.takes() == ([second] if some else [first, second])
    links = {path for path in (tmp_path / "into").rglob("*") if not path.is_dir()}
    takes = [second] if some else [first, second]
    expected = {path for take in takes for path in (scratch.seal(take), scratch.segment(take, 1))}
    assert links == expected
    for link in links:
        original = layout.events / link.relative_to(scratch.events)
        assert link.readlink() == original.resolve()


def test_the_takes_of_a_ledger_are_those_that_it_lists(layout: Layout, tmp_path: Path) -> None:
    """Each take is there under its very seal and undamaged, or it is refused by name."""
    first, second = (write_take(layout, take=take).name for take in (1, 2))
    texts, seals = config_texts(CONFIG), current_seals(layout)
    write_take(layout, take=3)
    assert restore(layout, named(texts, seals), tmp_path / "sound").layout.takes() == [
        first,
        second,
    ]
    other = named(texts, seals | {str(first): "0" * 64})
    with pytest.raises(DamageError, match=f"{first} is not the one that ledger 1 lists"):
        restore(layout, other, tmp_path / "other")
    path = layout.segment(second, 1)
    path.write_bytes(path.read_bytes()[:-2] + b"x\n")
    with pytest.raises(DamageError, match=str(second)):
        restore(layout, named(texts, seals), tmp_path / "damaged")
    retract(layout, str(second), "damaged")
    with pytest.raises(DamageError, match=str(second)):
        restore(layout, named(texts, seals), tmp_path / "still")
    restore(layout, named(texts, current_seals(layout)), tmp_path / "retracted")


def test_a_take_that_is_gone_was_retired_or_is_damage(layout: Layout, tmp_path: Path) -> None:
    """A take whose seal is gone is named as retired where a ledger retired that seal."""
    take = write_take(layout).name
    texts, seals = config_texts(CONFIG), current_seals(layout)
    local = layout.ledgers / "local"
    write_ledger(layout, local, CONFIG)
    layout.seal(take).unlink()
    with pytest.raises(DamageError, match=f"{take} is gone that ledger 1 lists"):
        restore(layout, named(texts, seals), tmp_path / "gone")
    write_ledger(layout, local, CONFIG, retired=seals)
    with pytest.raises(EvidenceError, match=f"{take} of ledger 1 was retired"):
        restore(layout, named(texts, seals), tmp_path / "retired")
    with pytest.raises(DamageError, match=f"{take} is gone that ledger 1 lists"):
        restore(layout, named(texts, {str(take): "0" * 64}), tmp_path / "another")
    layout.seal(take).write_text("a later take of that name")
    with pytest.raises(EvidenceError, match=f"{take} of ledger 1 was retired"):
        restore(layout, named(texts, seals), tmp_path / "replaced")
