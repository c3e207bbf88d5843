"""Causes of a row's difference: which input of a row is named, and which is not."""

from collections.abc import Iterable, Mapping
from types import SimpleNamespace
from typing import Any

import pytest
from nearfree.log.names import parse_take
from nearfree.prove.audit.causes import Causes
from nearfree.prove.audit.ledger_snapshot import LedgerSnapshot, RowKey

FIRST, SECOND = "cpu/dense_ffn/1-01234567", "cpu/dense_ffn/2-01234567"
OTHER = "cpu/gemm/1-01234567"
ROW = ("cpu", "boundaries:00000000000a")
PARENT = ("cpu", "latency:00000000000b")
FIT = ("public", "predictions:00000000000c")
Rows = Mapping[RowKey, list[str]]


class Side(LedgerSnapshot):
    """One of two compared ledgers: takes, retractions, rows' inputs, config, tables' inputs."""

    def __init__(
        self,
        takes: Iterable[str] = (),
        *,
        rows: Rows | None = None,
        retracted: dict[str, str] | None = None,
        config: dict[str, Any] | None = None,
        tables: dict[tuple[str, str], dict[str, str]] | None = None,
    ) -> None:
        self.takes = {parse_take(name): "" for name in takes}
        self.from_ids = dict(rows or {})
        self.retracted = retracted or {}
        self.config_inputs = config or {}
        tolerances = self.config_inputs.get("config.yaml", {}).get("tolerances", ())
        self.config = SimpleNamespace(site=SimpleNamespace(tolerances=tolerances))  # type: ignore[assignment]
        self._tables = tables or {}

    def inputs(self, scope: str, table: str) -> dict[str, str]:
        """Return the digests of a table's inputs."""
        return self._tables.get((scope, table), {})


def found(
    old: Side,
    new: Side,
    about: dict[str, Any] | None = None,
    others: Iterable[RowKey] = (),
    row: RowKey = ROW,
) -> list[str]:
    """Return the causes of a row that differs, as text; `others` differ, too."""
    differing: dict[RowKey, dict[str, Any]] = {row: about or {}} | {key: {} for key in others}
    return sorted(map(str, Causes(old, new, differing).of(row)))


def test_a_row_is_caused_by_the_takes_of_its_own_events() -> None:
    """A row that one ledger has is caused by the takes whose events it names, and by no others."""
    without, with_takes = Side(), Side([FIRST, SECOND, OTHER], rows={ROW: [f"{FIRST}.1#2"]})
    about = {"stream": "dense_ffn"}
    assert found(without, with_takes, about) == [f"new take {FIRST}"]
    assert found(with_takes, without, about) == [f"take left out {FIRST}"]


def test_inputs_that_both_ledgers_have_are_no_cause() -> None:
    """Of a row that differs only the inputs that one ledger lacks are asked for causes."""
    kept, gone, came = (f"{FIRST}.1#{number}" for number in (1, 2, 3))
    old = Side([FIRST], rows={ROW: [kept, gone]})
    new = Side([FIRST], rows={ROW: [kept, came]}, retracted={kept: "now", gone: "a backup ran"})
    assert found(old, new) == [f"retraction of {gone}: a backup ran"]


@pytest.mark.parametrize("target", [f"{FIRST}.1#2", FIRST])
def test_a_retracted_event_and_its_retracted_take_are_causes(target: str) -> None:
    """A row that loses an event is caused by the retraction of the event or of its take."""
    old = Side([FIRST], rows={ROW: [f"{FIRST}.1#2"]})
    new = Side([FIRST], retracted={target: "a backup ran", OTHER: "another reason"})
    assert found(old, new) == [f"retraction of {target}: a backup ran"]
    assert found(new, old) == [f"no retraction of {target}: a backup ran"]


@pytest.mark.parametrize("parent", [PARENT, FIT])
def test_a_row_has_the_causes_of_the_rows_that_it_is_made_from(parent: RowKey) -> None:
    """A row made from a row that differs, of its own scope or another, has that row's causes."""
    scope, row_id = parent
    take = f"{scope}/constants/1-01234567"
    inputs = {ROW: [row_id]}
    old = Side(rows={**inputs, parent: []})
    new = Side([take], rows={**inputs, parent: [f"{take}.1#1"]})
    kind = "constants" if scope == "public" else "take"
    assert found(old, new, others=[parent]) == [f"new {kind} {take}"]
    assert found(old, new) == ["unknown cause: nothing that its table is made from differs"]


def test_a_row_that_only_one_ledger_has_is_followed() -> None:
    """A row that lost or got one of the rows it is made from has that row's causes."""
    whole = Side([OTHER], rows={ROW: [FIT[1]], FIT: [f"{OTHER}.1#1"]})
    part = Side(rows={ROW: []})
    assert found(whole, part, others=[FIT]) == [f"take left out {OTHER}"]
    assert found(part, whole, others=[FIT]) == [f"new take {OTHER}"]


def test_a_row_is_made_from_rows_of_its_own_scope_first() -> None:
    """Of two scopes that have a row of one id, a row is followed to that of its own scope."""
    old = Side(rows={ROW: [PARENT[1]], PARENT: [], ("h20", PARENT[1]): []})
    takes = {PARENT: FIRST, ("h20", PARENT[1]): OTHER}
    events = {key: [f"{take}.1#1"] for key, take in takes.items()}
    new = Side(takes.values(), rows={ROW: [PARENT[1]], **events})
    assert found(old, new, others=takes) == [f"new take {FIRST}"]
    assert found(new, old, others=takes) == [f"take left out {FIRST}"]


CONFIG: dict[str, Any] = {
    "platforms.yaml": {"h20": {"sms": 78}, "h200": {"sms": 132}},
    "deployments.yaml": {"dense": {"batch": [1]}},
    "models/small.json": "a" * 64,
}


@pytest.mark.parametrize(
    ("entry", "change", "causes"),
    [
        (
            "config/platforms.yaml:h20@0123",
            {"platforms.yaml": {"h20": {"sms": 79}, "h200": {"sms": 133}}},
            ["datasheet platforms.yaml:h20.sms: 78 became 79"],
        ),
        (
            "config/platforms.yaml:h20@0123",
            {"platforms.yaml": {"h200": {"sms": 133}}},
            ["datasheet platforms.yaml:h20: was taken out"],
        ),
        (
            "config/platforms.yaml:h20@0123",
            {"platforms.yaml": []},
            [f"datasheet platforms.yaml: {CONFIG['platforms.yaml']} became []"],
        ),
        (
            "config/deployments.yaml:dense.batch",
            {"deployments.yaml": {"dense": []}, "platforms.yaml": {}},
            ["config deployments.yaml:dense: {'batch': [1]} became []"],
        ),
        (
            "config/models:small",
            {"models/small.json": "b" * 64, "models/smaller.json": "c" * 64},
            [f"config models/small.json: {'a' * 64} became {'b' * 64}"],
        ),
    ],
)
def test_an_entry_of_the_config_is_caused_by_its_own_changes(
    entry: str, change: dict[str, Any], causes: list[str]
) -> None:
    """Of the config's changes those of, above and below the entry that a row names are causes."""
    old, new = Side(rows={ROW: [entry]}, config=CONFIG), Side(config=CONFIG | change)
    assert found(old, new) == causes


def test_an_entry_that_was_no_mapping_is_told_whole() -> None:
    """A value that is a mapping in one config alone is told with both values."""
    row = {ROW: ["config/deployments.yaml:dense"]}
    old = Side(rows=row, config={"deployments.yaml": {"dense": None}})
    new = Side(config={"deployments.yaml": {"dense": {"batch": [1]}}})
    cause = "config deployments.yaml:dense: None became {'batch': [1]}"
    assert found(old, new) == [cause]


def test_an_added_file_is_told_by_its_name() -> None:
    """A file that one config lacks was added or taken out, with all that it holds."""
    entry = "config/deployments.yaml:dense"
    whole = Side(rows={ROW: [entry]}, config=CONFIG)
    part = Side(config={name: CONFIG[name] for name in CONFIG if name != "deployments.yaml"})
    assert found(part, whole) == ["config deployments.yaml: was added"]
    assert found(whole, part) == ["config deployments.yaml: was taken out"]


def site(*tolerances: float, epsilon: float = 0.2) -> dict[str, Any]:
    """Return a config with tolerances, its own one, and another key that changes with them."""
    return {
        "config.yaml": {"tolerances": [*tolerances], "epsilon": epsilon, "here": len(tolerances)}
    }


def test_a_row_at_a_tolerance_of_one_config_is_caused_by_the_tolerances() -> None:
    """A row that one ledger has, at a tolerance that one config lists, is caused by that list.

    The config's own tolerance, which the list of tolerances holds as well, is told if it changed.
    """
    listed = "config config.yaml:tolerances: [0.1, 0.2] became [0.1]"
    old, new = Side(rows={ROW: []}, config=site(0.1, 0.2)), Side(config=site(0.1))
    assert found(old, new, {"epsilon": 0.2}) == [listed]
    own = Side(config=site(0.1, epsilon=0.1))
    assert found(old, own, {"epsilon": 0.2}) == [
        "config config.yaml:epsilon: 0.2 became 0.1",
        listed,
    ]
    # At a tolerance of both configs, or in both ledgers, the row has no cause of its own.
    every = ["config config.yaml:here: 2 became 1", listed]
    assert found(old, new, {"epsilon": 0.1}) == every
    assert found(old, Side(rows={ROW: []}, config=site(0.1)), {"epsilon": 0.2}) == every


def test_a_row_of_a_deployment_is_caused_by_its_entry() -> None:
    """A row that one ledger has is caused by changes of the deployment that it answers."""
    old = Side(config={"deployments.yaml": {"dense": {"batch": [1]}, "moe": {"batch": [1]}}})
    new = Side(
        rows={ROW: []},
        config={"deployments.yaml": {"dense": {"batch": [1, 2]}, "moe": {"batch": [4]}}},
    )
    cause = "config deployments.yaml:dense.batch: [1] became [1, 2]"
    assert found(old, new, {"deployment": "dense"}) == [cause]


def test_a_row_without_changed_inputs_is_caused_by_takes_of_its_stream() -> None:
    """`newest` of a row changes with the other takes of its stream, and their retractions."""
    old = Side([FIRST], rows={ROW: [f"{FIRST}.1#1"]})
    new = Side([FIRST, SECOND, OTHER], rows={ROW: [f"{FIRST}.1#1"]})
    assert found(old, new, {"stream": "dense_ffn"}) == [f"new take {SECOND}"]
    retracted = Side([FIRST, SECOND], rows=new.from_ids, retracted={SECOND: "busy", OTHER: "busy"})
    new = Side([FIRST, SECOND], rows=new.from_ids)
    assert found(new, retracted, {"stream": "dense_ffn"}) == [f"retraction of {SECOND}: busy"]


def tables(**digests: str) -> dict[tuple[str, str], dict[str, str]]:
    """Return the inputs of the boundaries of a platform, whose names are given in short."""
    names = {
        "tolerances": "config/config.yaml:tolerances",
        "events": "events/cpu",
        "rules": "events/sources",
        "constants": "constants/calibrated",
        "sheet": "config/platforms.yaml:cpu",
    }
    return {("cpu", "boundaries"): {names[name]: digest for name, digest in digests.items()}}


RULES, FITTED = "sources/vllm_0_33_0/1-01234567", "public/kernels/1-01234567"
PAPER = "public/paper/1-01234567"


@pytest.mark.parametrize(
    ("changed", "causes"),
    [
        ({"rules": "1", "events": "1", "tolerances": "1"}, [f"new rules {RULES}"]),
        ({"constants": "1", "events": "1"}, [f"new constants {FITTED}"]),
        ({"sheet": "1", "events": "1"}, ["datasheet platforms.yaml:cpu: was added"]),
        ({"events": "1"}, [f"new take {FIRST}"]),
        ({"tolerances": "1", "events": "1"}, ["config config.yaml:tolerances: was added"]),
    ],
)
def test_inputs_that_a_table_s_rows_share_are_causes(
    changed: dict[str, str], causes: list[str]
) -> None:
    """Without an input of its own a row is caused by its table's changed inputs.

    Tolerances, and then the events of the scope itself, count only where nothing else changed.
    """
    equal = dict.fromkeys(("tolerances", "events", "rules", "constants", "sheet"), "0")
    rows: Rows = {ROW: []}
    old = Side(rows=rows, tables=tables(**equal), config={"config.yaml": {}, "platforms.yaml": {}})
    new = Side(
        [RULES, FITTED, PAPER, FIRST],
        rows=rows,
        tables=tables(**equal | changed),
        config={"config.yaml": {"tolerances": [0.2]}, "platforms.yaml": {"cpu": {}, "h20": {}}},
    )
    assert found(old, new) == causes


def test_a_change_of_the_config_is_a_last_cause() -> None:
    """A row whose table has equal inputs is caused by all changes of the config, if any."""
    old, new = Side(rows={ROW: []}, config=CONFIG), Side(rows={ROW: []})
    assert found(old, new) == [
        "config deployments.yaml: was taken out",
        "config models/small.json: was taken out",
        "datasheet platforms.yaml: was taken out",
    ]
    assert found(new, new) == ["unknown cause: nothing that its table is made from differs"]


@pytest.mark.parametrize(
    ("take", "cause"),
    [
        ("public/constants/1-01234567", "new constants"),
        ("public/constants_own/1-01234567", "new constants"),
        ("public/kernels/1-01234567", "new constants"),
        ("public/paper/1-01234567", "new take"),
        ("cpu/kernels/1-01234567", "new take"),
        ("sources/vllm_0_33_0/1-01234567", "new rules"),
        ("imported/aiconfigurator/1-01234567", "new import"),
    ],
)
def test_a_take_is_named_by_what_it_holds(take: str, cause: str) -> None:
    """Takes of constants, rules and imported curves are named as such."""
    assert found(Side(), Side([take], rows={ROW: [f"{take}.1#1"]})) == [f"{cause} {take}"]


def test_the_take_of_a_retraction_is_no_cause() -> None:
    """A retraction is told by what it retracts, and not by the take that records it."""
    retracting = "cpu/retracted/1-01234567"
    about = {"stream": "retracted"}
    assert found(Side(rows={ROW: []}), Side([retracting], rows={ROW: []}), about) == [
        "unknown cause: nothing that its table is made from differs"
    ]
