"""Tuning: rules from measurements, the cache and what it refuses, one table for all ranks, and the command."""

import json
import logging
import pickle
from concurrent.futures import ThreadPoolExecutor

import pytest
from rich.console import Console
from torch.distributed import HashStore
from typer.testing import CliRunner

import torchcomms
from torchcomms import tuning
from torchcomms.algorithms.choice import DEFAULT, Rule, Table, always, chosen
from torchcomms.cli import app
from torchcomms.errors import CacheRefused, CommsTimeout, InvalidCall
from torchcomms.providers.inproc import InprocBackend
from torchcomms.testing import ThreadWorld
from torchcomms.tuner import Plan, measure, plan_of
from torchcomms.tuner import tune as run_tune
from torchcomms.tuning import Tuned

pytestmark = pytest.mark.unit

ROWS = [
    ("all_reduce", 8, "exchange", 1.0),
    ("all_reduce", 8, "doubling", 2.0),
    ("all_reduce", 1 << 10, "exchange", 1.0),
    ("all_reduce", 1 << 20, "ring", 1.0),
    ("all_reduce", 1 << 20, "halving", 3.0),
]


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "torchcomms" / "tuning-tcp.json"


@pytest.fixture
def tuned():
    return Tuned("tcp", {4: ROWS})


def test_the_fastest_algorithm_of_a_size_rules_up_to_the_middle_of_the_next(tuned):
    table = tuned.table()
    middle = 1 << 15
    assert table.choose("all_reduce", 4, 100) == table.choose("all_reduce", 3, middle) == "exchange"
    assert table.choose("all_reduce", 4, middle + 1) == table.choose("all_reduce", 4, 1 << 40) == "ring"
    assert table.choose("all_reduce", 2, 1 << 40) == "exchange"
    assert table.choose("all_reduce", 5, 1 << 20) == DEFAULT.choose("all_reduce", 5, 1 << 20)
    assert table.choose("broadcast", 4, 8) == DEFAULT.choose("broadcast", 4, 8)


def test_each_number_of_ranks_goes_by_its_own_measurements():
    two = Tuned("tcp", {8: ROWS, 2: [("all_reduce", 8, "doubling", 1.0)]}).table()
    assert two.choose("all_reduce", 2, 8) == "doubling"
    assert two.choose("all_reduce", 3, 8) == "exchange"


def test_a_table_survives_json():
    for table in (DEFAULT, always("all_reduce", "hierarchical", 8), Table()):
        assert Table.from_json(json.loads(json.dumps(table.to_json()))).to_json() == table.to_json()
    with pytest.raises(ValueError, match="not a table of choices"):
        Table.from_json([1, 2])
    with pytest.raises(ValueError, match="a limit is a number"):
        Table.from_json({"local": 1, "rules": {"all_reduce": [["ring", "many", None]]}})


def test_what_is_saved_is_read_again(tuned, cache):
    assert tuning.cached("tcp") is None
    assert tuning.save(tuned) == cache
    assert tuning.cached("tcp") == tuned
    assert [file.name for file in cache.parent.iterdir()] == [cache.name]


def test_a_relative_cache_folder_is_not_used(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", "here")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert tuning.path("tcp") == tmp_path / ".cache" / "torchcomms" / "tuning-tcp.json"


def changed(text, **fields):
    return json.dumps({**json.loads(text), **fields})


DAMAGE = {
    "half written": (lambda text: text[: len(text) // 2], "is not used"),
    "empty": (lambda text: "", "is not used"),
    "not text": (lambda text: b"\xff\xfe\x00", "is not used"),
    "a list": (lambda text: "[]", "version 1"),
    "a later version": (lambda text: changed(text, version=2), "version 1"),
    "no machine": (lambda text: changed(text, machine=None), "is not used"),
    "another machine": (
        lambda text: changed(text, machine={**tuning.machine(), "cores": "96"}),
        r"measured elsewhere \(cores '96'",
    ),
    "another backend": (lambda text: changed(text, backend="shm"), "of the backend 'shm'"),
    "an unknown algorithm": (
        lambda text: changed(text, worlds={"4": [["all_reduce", 8, "magic", 1.0]]}),
        "no algorithm 'magic'",
    ),
    "an unknown operation": (lambda text: changed(text, worlds={"4": [["fly", 8, "ring", 1.0]]}), "fly"),
    "rows cut short": (lambda text: changed(text, worlds={"4": [["all_reduce", 8]]}), "is not used"),
    "nested without end": (lambda text: "[" * 100_000, "is not used"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_or_foreign_cache_is_refused_with_a_word(tuned, cache, damage, caplog):
    break_it, words = DAMAGE[damage]
    tuning.save(tuned)
    broken = break_it(cache.read_text())
    cache.write_bytes(broken if isinstance(broken, bytes) else broken.encode())
    with pytest.raises(CacheRefused, match=words) as caught:
        tuning.cached("tcp")
    assert caught.value.path == str(cache)
    assert pickle.loads(pickle.dumps(caught.value)).path == str(cache)
    with caplog.at_level(logging.WARNING):
        backend = opened(1)
        assert tuning.agree(backend, HashStore()) is None
    assert str(cache) in caplog.text


def test_a_cache_that_is_no_file_is_refused_and_a_folder_that_cannot_be_made_is_an_error(tuned, cache, monkeypatch):
    cache.mkdir(parents=True)
    with pytest.raises(CacheRefused, match="cannot be read"):
        tuning.cached("tcp")
    (cache.parent / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache.parent / "file"))
    with pytest.raises(InvalidCall, match="set XDG_CACHE_HOME"):
        tuning.save(tuned)


class Named:
    """What `agree` needs of a backend."""

    name, timeout = "tcp", 0.2

    def __init__(self, rank, size):
        self.rank, self.size, self.choices, self.closed = rank, size, None, False

    def close(self):
        self.closed = True


def opened(size, rank=0):
    return Named(rank, size)


def test_all_ranks_get_rank_0s_table_and_every_opening_its_own(tuned, cache):
    store = HashStore()
    tuning.save(tuned)
    first = [opened(3, rank) for rank in range(3)]
    tables = [tuning.agree(backend, store) for backend in first]
    cache.unlink()
    second = [opened(3, rank) for rank in range(3)]
    assert [tuning.agree(backend, store) for backend in second] == [None] * 3
    assert all(table.to_json() == tuned.table().to_json() for table in tables)
    assert [chosen(backend, "all_reduce", 1 << 20) for backend in first] == ["ring"] * 3
    assert [chosen(backend, "all_reduce", 1 << 20) for backend in second] == ["shares"] * 3


def test_a_rank_0_that_does_not_come_is_named():
    backend = opened(2, 1)
    with pytest.raises(CommsTimeout, match="rank 0 did not say") as caught:
        tuning.agree(backend, HashStore())
    assert caught.value.missing == {0}
    assert backend.closed


def test_a_communicator_uses_what_was_tuned(tuned, monkeypatch):
    monkeypatch.setattr(tuning, "_own", lambda backend: tuned.table())
    store = HashStore()

    def rank(number):
        with torchcomms.new_comm("inproc", "cpu", name="tuned", store=store, rank=number, size=2) as comm:
            half = comm.split([0, 1], "half")
            return [one.get_backend_impl().choices for one in (comm, half)]

    with ThreadPoolExecutor(2) as threads:
        found = [table for tables in threads.map(rank, range(2)) for table in tables]
    assert [table.to_json() for table in found] == [tuned.table().to_json()] * 4


def test_measuring_times_every_case_on_every_rank_alike_and_leaves_the_choices():
    plan = Plan("inproc", 3, ("all_reduce", "reduce", "reduce_scatter", "all_gather", "broadcast"), (8, 4096), 1)
    world = ThreadWorld(InprocBackend, 3)
    told = []
    try:
        outcomes = world.run(lambda backend: measure(backend, plan, told.append if backend.rank == 0 else len))
        choices = [backend.choices for backend in world.backends]
    finally:
        world.close()
    cases = list(plan.cases())
    assert outcomes[0] == outcomes[1] == outcomes[2]
    assert [row[:3] for row in outcomes[0]] == cases == [tuple(one) for one in told]
    assert all(row[3] > 0 for row in outcomes[0])
    assert choices == [None] * 3


def test_plans_without_a_meaning_are_refused(monkeypatch):
    with pytest.raises(InvalidCall, match="no choice of algorithms"):
        Plan("tcp", 2, ("fly",))
    with pytest.raises(InvalidCall, match="pass some from 1"):
        Plan("tcp", 2, ("all_reduce",), (0,))
    with pytest.raises(InvalidCall, match="2 or more"):
        Plan("tcp", 1, ("all_reduce",))
    capabilities = InprocBackend.capabilities()
    object.__setattr__(capabilities, "native", frozenset({"all_reduce"}))
    monkeypatch.setattr(InprocBackend, "capabilities", classmethod(lambda cls: capabilities))
    assert "all_reduce" not in plan_of("inproc", 2, (), (), 1).operations
    with pytest.raises(InvalidCall, match="there is nothing to choose"):
        plan_of("inproc", 2, ("all_reduce",), (), 1)


def test_the_command_says_what_it_would_do_and_what_there_is(tuned, cache):
    invoke = CliRunner().invoke
    dry = invoke(app, ["tune", "--dry-run", "-n", "3", "-o", "all_reduce", "-s", "8"])
    assert dry.exit_code == 0
    assert "6 cases of all_reduce on 3 ranks over tcp" in dry.output
    assert "nothing is measured" in dry.output
    assert not cache.exists()
    assert "nothing is cached for tcp" in invoke(app, ["tune", "--show"]).output
    tuning.save(tuned)
    shown = invoke(app, ["tune", "--show"])
    assert shown.exit_code == 0
    assert "exchange 1000000, doubling 2000000" in " ".join(shown.output.split())
    cache.write_text("{")
    refused = invoke(app, ["tune", "--show"])
    assert refused.exit_code == 1
    assert "is not used" in refused.output


def test_tuning_keeps_what_other_numbers_of_ranks_gave_and_replaces_a_damaged_cache(tuned, cache, monkeypatch):
    rows = [["broadcast", 8, "tree", 1.0]]

    def stand_in(module, ranks, arguments, progress):
        progress(["broadcast", 8, "tree"])
        return rows

    monkeypatch.setattr("torchcomms.tuner.on_ranks", stand_in)
    tuning.save(tuned)
    with open("/dev/null", "w") as nowhere:
        run_tune(Plan("tcp", 2, ("broadcast",)), dry_run=False, console=Console(file=nowhere))
        assert tuning.cached("tcp").worlds == {4: ROWS, 2: [tuple(rows[0])]}
        cache.write_text("damaged")
        run_tune(Plan("tcp", 2, ("broadcast",)), dry_run=False, console=Console(file=nowhere))
    assert tuning.cached("tcp").worlds == {2: [tuple(rows[0])]}


@pytest.mark.slow
@pytest.mark.system
def test_the_command_measures_on_ranks_of_its_own(start, cache):
    script = cache.parent.parent.parent / "tune.py"
    script.write_text("from torchcomms.cli import main\nmain()\n")
    process = start(
        script, "tune", "-o", "broadcast", "-s", "8", "--repeats", "1", XDG_CACHE_HOME=str(cache.parent.parent)
    )
    output, errors = process.communicate()
    assert process.returncode == 0, errors
    assert "written to" in output
    assert [row[:3] for row in tuning.cached("tcp").worlds[2]] == [
        ("broadcast", 8, algorithm) for algorithm in ("tree", "wide tree", "scatter")
    ]


def test_rules_say_what_they_cover():
    assert Rule("ring", 4, 10).fits(4, 10)
    assert not Rule("ring", 4, 10).fits(5, 10)
    assert not Rule("ring", 4, 10).fits(4, 11)
