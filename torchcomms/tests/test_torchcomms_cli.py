"""The command `torchcomms`: what it refuses, what `doctor` says, and that its help shows every command."""

import json
import re
import sys

import pytest
from typer.testing import CliRunner

from torchcomms import doctor, errors
from torchcomms.backend import Capabilities
from torchcomms.cli import app
from torchcomms.selftest import MARKER

unit = pytest.mark.unit
system = pytest.mark.system


def invoke(*words):
    return CliRunner().invoke(app, list(words), env={"COLUMNS": "200", "TERM": "dumb"})


@unit
def test_help_shows_every_command_and_tab_completion():
    shown = invoke("--help").output
    assert {"run", "bench", "doctor"} <= set(re.findall(r"\b\w+\b", shown))
    assert "--install-completion" in shown


@unit
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["run", "no-such-script.py"], "a module is started with -m"),
        (["run", "-e", "NOVALUE", "-m", "x"], "'NOVALUE' is not NAME=VALUE"),
        (["run", "--nnodes", "2", "-m", "x"], "need a rendezvous"),
        (["bench", "all_reduce_all"], "there are all_gather, all_reduce"),
        (["bench", "all_reduce", "--sizes", "64M:8"], "are no range"),
        (["bench", "all_reduce", "--sizes", "many"], "is no size"),
        (["bench", "all_reduce", "--dtype", "float33"], "is no dtype"),
    ],
)
def test_words_that_make_no_sense_are_refused(words, message):
    refused = invoke(*words)
    assert refused.exit_code == 2
    assert message in " ".join(refused.output.replace("│", "").split())


@unit
def test_doctor_says_what_there_is_and_what_each_backend_does(capsys):
    assert doctor.main() == 0
    said = capsys.readouterr().out
    assert re.search(r"^torchcomms \S+, torch \S+, Python 3", said, re.MULTILINE)
    assert re.search(r"^inproc: usable: cpu tensors of every dtype", said, re.MULTILINE)
    assert re.search(r"^tcp: usable: .*notices deaths within \d+ ms", said, re.MULTILINE)
    assert re.search(r"^shm: usable: .*mismatches found on the way", said, re.MULTILINE)


class Unusable:
    @staticmethod
    def capabilities():
        return Capabilities(usable=False, reason="there is no such device: buy one")


@unit
def test_doctor_says_why_not_and_fails_if_nothing_is_usable(capsys, monkeypatch):
    monkeypatch.setattr(doctor, "backends", lambda: ["absent", "broken"])

    def find(name):
        if name == "broken":
            raise errors.BackendInvalid("backend 'broken' does not import")
        return Unusable

    monkeypatch.setattr(doctor, "find", find)
    assert doctor.main() == 1
    said = capsys.readouterr()
    assert "absent: not usable here: there is no such device: buy one" in said.out
    assert "broken: broken: backend 'broken' does not import" in said.out
    assert "no backend is usable here" in said.err


STUB = """
import json, os, sys
for name in sys.argv[1:]:
    if name == "ends":
        os._exit(9)
    print("torchcomms-selftest " + json.dumps([name, "wrong sum" if name == "wrong" else ""]), flush=True)
"""


@system
def test_a_backend_that_ends_its_ranks_does_not_end_the_self_test(capsys, tmp_path):
    script = tmp_path / "stub.py"
    script.write_text(STUB)
    assert doctor.try_out(["good", "ends", "wrong", "good"], (sys.executable, str(script))) == 1
    said = capsys.readouterr().out
    assert "good: works\nends: its ranks did not come to the end\nwrong: wrong sum\ngood: works\n" in said
    assert doctor.try_out(["good"], (sys.executable, str(script))) == 0


@system
def test_the_self_test_of_backends_that_work_and_of_one_that_does_not(ranks, tmp_path):
    script = tmp_path / "rank.py"
    script.write_text("from torchcomms.selftest import main\nmain(['inproc', 'tcp', 'none', 'shm'])\n")
    for rank in ranks(2, script):
        written, errors = rank.communicate()
        found = [json.loads(line.removeprefix(MARKER)) for line in written.splitlines()]
        assert [name for name, _ in found] == ["inproc", "tcp", "none", "shm"], errors
        troubles = [trouble.partition(":")[0] for _, trouble in found]
        assert troubles == ["", "", "BackendNotFound", ""], written
