"""Finding backends: names from metadata, one owner a name, checked once."""

from importlib.metadata import EntryPoint

import pytest

from torchcomms import discovery
from torchcomms.errors import BackendConflict, BackendInvalid, BackendNotFound
from torchcomms.providers.inproc import InprocBackend

pytestmark = pytest.mark.unit


class Distribution:
    version = "1.2"

    def __init__(self, name):
        self.name = name


def entry(name, value, owner):
    point = EntryPoint(name, value, discovery.GROUP)
    vars(point).update(dist=Distribution(owner))
    return point


class LaterMajor(InprocBackend):
    interface = (2, 0)


class LaterMinor(InprocBackend):
    interface = (1, 7)


class OldSignature(InprocBackend):
    def broadcast(self, tensor):
        return tensor


class Half(discovery.Backend):
    name = "half"


@pytest.fixture
def installed(monkeypatch):
    def install(*points):
        def listed(group, name=None):
            return [point for point in points if name in (None, point.name)]

        monkeypatch.setattr(discovery, "entry_points", listed)
        discovery.find.cache_clear()

    yield install
    monkeypatch.undo()
    discovery.find.cache_clear()


def test_own_backends_are_found_by_name():
    assert {"inproc", "tcp"} <= set(discovery.backends())
    assert discovery.find("inproc") is InprocBackend


def test_an_unknown_name_lists_what_there_is():
    with pytest.raises(BackendNotFound, match=r"'warp'.*inproc,.* tcp.*torchcomms\.backends\.v1") as caught:
        discovery.find("warp")
    assert caught.value.name == "warp"
    assert "tcp" in caught.value.known


def test_two_owners_of_a_name_are_both_named(installed):
    installed(entry("a", "one:X", "first"), entry("a", "two:X", "second"))
    with pytest.raises(BackendConflict, match=r"first 1\.2 and by second 1\.2"):
        discovery.find("a")
    assert discovery.backends() == ["a"]


def test_one_distribution_listed_twice_is_no_conflict(installed):
    point = entry("a", "torchcomms.providers.inproc:InprocBackend", "first")
    installed(point, point)
    assert discovery.find("a") is InprocBackend


def test_a_provider_that_does_not_import_is_named_with_its_version(installed):
    installed(entry("a", "no_such_module:X", "mine"))
    assert discovery.backends() == ["a"]
    with pytest.raises(BackendInvalid, match=r"mine 1\.2 does not import") as caught:
        discovery.find("a")
    assert isinstance(caught.value.__cause__, ModuleNotFoundError)


@pytest.mark.parametrize(
    ("candidate", "problem"),
    [
        (object(), "no subclass"),
        (Half, "lacks abort, capabilities, close, lost, open, post"),
        (LaterMajor, r"interface is 2\.0"),
        (OldSignature, "broadcast does not take"),
    ],
    ids=["object", "abstract", "major", "signature"],
)
def test_what_does_not_meet_the_contract_is_refused(candidate, problem, installed, monkeypatch):
    monkeypatch.setattr(f"{discovery.__name__}.CANDIDATE", candidate, raising=False)
    installed(entry("a", f"{discovery.__name__}:CANDIDATE", "mine"))
    with pytest.raises(BackendInvalid, match=problem):
        discovery.find("a")


def test_a_later_minor_is_welcome():
    assert discovery.check_class(LaterMinor) == []
