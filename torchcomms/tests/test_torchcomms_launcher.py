"""The launcher: ranks started together, on one machine or several, and ended together with all that they started."""

import os
import re
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from torchcomms.errors import InvalidCall
from torchcomms.launcher import Job, leash
from torchcomms.launcher.output import LINE, printer
from torchcomms.launcher.process import LEASH
from torchcomms.launcher.verdict import causes, named, reason, summary

DEADLINE = 120
system = pytest.mark.system
unit = pytest.mark.unit


def script(folder, *lines, name="script.py"):
    path = folder / name
    path.write_text("import os, signal, subprocess, sys, time\n" + "\n".join(lines) + "\n")
    return path


def survivors(pids, seconds):
    """Those of `pids` that still run after at most `seconds`."""
    until = time.monotonic() + seconds
    while any(alive(pid) for pid in pids) and time.monotonic() < until:
        continue
    return [pid for pid in pids if alive(pid)]


def alive(pid):
    """Whether a process still runs; one that only waits to be collected does not."""
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


def pids_of(process, lines):
    """The numbers that the first lines of its output end with."""
    return [int(pid) for _ in range(lines) for pid in re.findall(r"\d+", process.stdout.readline().partition("pid")[2])]


STRAY = "child = subprocess.Popen(['sleep', '600'], start_new_session=True)"


@system
def test_who_failed_and_why_and_the_rest_is_ended(command, tmp_path):
    path = script(
        tmp_path, "if os.environ['RANK'] == '1':\n    sys.exit('no such luck ' + sys.argv[2])", "time.sleep(600)"
    )
    done = command("run", "-n", "3", path, "--flag", "today")
    _, errors = done.communicate()
    assert done.returncode == 1
    assert "[1] no such luck today" in errors
    assert "rank 1 exited with code 1; its last errors:\n    no such luck today" in errors
    assert "rank 0 was killed by SIGTERM when the rest was ended" in errors


@system
def test_the_last_line_of_the_traceback_is_the_reason(command, tmp_path):
    path = script(tmp_path, "raise KeyError(os.environ['RANK'])")
    done = command("run", path)
    _, errors = done.communicate()
    assert "torchcomms: rank 0 exited with code 1: KeyError: '0'\n" in errors


@system
def test_a_signal_becomes_the_exit_code_and_the_stubborn_are_killed(command, tmp_path):
    path = script(
        tmp_path,
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)",
        'open(f\'{os.environ["FOLDER"]}/{os.environ["RANK"]}\', "w").close()',
        "while len([name for name in os.listdir(os.environ['FOLDER']) if name.isdigit()]) < 2:",
        "    time.sleep(0.01)",
        "if os.environ['RANK'] == '0':",
        "    os.kill(os.getpid(), signal.SIGKILL)",
        "time.sleep(600)",
    )
    done = command("run", "-n", "2", "--grace", "0.2", "-e", f"FOLDER={tmp_path}", path)
    _, errors = done.communicate()
    assert done.returncode == 128 + signal.SIGKILL
    assert "rank 0 was killed by SIGKILL" in errors
    assert "rank 1 was killed by SIGKILL when the rest was ended" in errors


@system
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_leaves_no_process_in_whatever_session(command, tmp_path, number):
    launcher = command(
        "run", "-n", "2", script(tmp_path, STRAY, "print('pid', os.getpid(), child.pid)\ntime.sleep(600)")
    )
    pids = pids_of(launcher, 2)
    launcher.signal(number)
    launcher.communicate()
    assert launcher.returncode == 130
    assert len(pids) == 4
    assert not survivors(pids, 10)


@system
def test_a_second_interrupt_waits_no_longer(command, tmp_path):
    path = script(
        tmp_path,
        "signal.signal(signal.SIGTERM, lambda *_: print('asked'))",
        "print('ready')",
        "while True: time.sleep(1)",
    )
    launcher = command("run", "--grace", "600", path)
    assert launcher.stdout.readline() == "[0] ready\n"
    launcher.signal(signal.SIGINT)
    assert launcher.stdout.readline() == "[0] asked\n"
    launcher.signal(signal.SIGINT)
    launcher.communicate()
    assert launcher.returncode == 130


@system
def test_what_a_rank_started_ends_with_it(command, tmp_path):
    launcher = command("run", script(tmp_path, STRAY, "print('pid', child.pid)"))
    (pid,) = pids_of(launcher, 1)
    launcher.communicate()
    assert launcher.returncode == 0
    assert not alive(pid)


@system
def test_a_killed_launcher_takes_its_ranks_and_all_that_they_started_with_it(command, tmp_path):
    path = script(
        tmp_path,
        "signal.signal(signal.SIGTERM, signal.SIG_IGN)",
        STRAY,
        "print('pid', os.getpid(), os.getppid(), child.pid)\ntime.sleep(600)",
    )
    launcher = command("run", "-n", "2", path)
    pids = pids_of(launcher, 2)
    assert len(pids) == 6
    assert all(alive(pid) for pid in pids)
    launcher.kill()
    left = survivors(pids, 10)
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert not left
    assert launcher.wait() == -signal.SIGKILL


@system
def test_a_killed_keeper_takes_its_rank_with_it(command, tmp_path):
    launcher = command("run", script(tmp_path, "print('pid', os.getpid(), os.getppid())\ntime.sleep(600)"))
    rank, keeper = pids_of(launcher, 1)
    os.kill(keeper, signal.SIGKILL)
    launcher.communicate()
    assert launcher.returncode == 128 + signal.SIGKILL
    assert not survivors([rank], 10)


@system
def test_a_rank_whose_launcher_ended_before_it_started_does_not_start():
    captured = {"capture_output": True, "text": True, "timeout": DEADLINE}
    started = subprocess.run([*LEASH, str(os.getpid()), "echo", "ran"], **captured)
    assert (started.returncode, started.stdout) == (0, "ran\n")
    orphan = subprocess.run([*LEASH, "1", "echo", "ran"], **captured)
    assert (orphan.returncode, orphan.stdout) == (1, "")
    assert "process 1, ended before this rank started" in orphan.stderr


@system
@pytest.mark.parametrize("end", ["exit 7", "kill -TERM $$", "kill -KILL $$"])
def test_a_keeper_ends_as_its_rank_ends(end):
    alone = subprocess.run(["sh", "-c", end], timeout=DEADLINE)
    kept = subprocess.run([*LEASH, str(os.getpid()), "sh", "-c", end], timeout=DEADLINE)
    assert kept.returncode == alone.returncode != 0


@system
def test_a_command_that_is_not_there_is_said():
    kept = subprocess.run([*LEASH, str(os.getpid()), "/no/such"], capture_output=True, text=True, timeout=DEADLINE)
    assert (kept.returncode, kept.stderr) == (
        127,
        "torchcomms: /no/such cannot be started: No such file or directory\n",
    )


@system
def test_a_leash_leaves_its_ranks_the_signals_of_a_fresh_process():
    masks = subprocess.run(
        [*LEASH, str(os.getpid()), "grep", "-E", "^Sig(Blk|Ign)", "/proc/self/status"],
        capture_output=True,
        text=True,
        timeout=DEADLINE,
    ).stdout
    assert [int(line.split()[1], 16) for line in masks.splitlines()] == [0, 0]


@system
def test_the_words_of_torchrun_are_set(command, tmp_path):
    words = ["RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_ADDR"]
    path = script(tmp_path, f"print(*(os.environ[word] for word in {words}), os.environ['MASTER_PORT'].isdigit())")
    done = command("run", "-n", "2", "--no-prefix", path)
    written, errors = done.communicate()
    assert sorted(written.splitlines()) == ["0 0 2 2 0 127.0.0.1 True", "1 1 2 2 0 127.0.0.1 True"], errors


@system
def test_a_module_and_its_arguments(command, tmp_path):
    script(tmp_path, "print(__name__, sys.argv[1:])", name="a_module.py")
    done = command("run", "-m", "a_module", "-n", "3", PYTHONPATH=str(tmp_path))
    written, errors = done.communicate()
    assert written == "[0] __main__ ['-n', '3']\n", errors


@system
def test_what_rank_0_reads_is_what_the_launcher_got(command, tmp_path):
    launcher = command("run", "-n", "2", script(tmp_path, "print(sys.stdin.read().strip() or 'nothing')"))
    launcher.stdin.write("for rank 0\n")
    launcher.stdin.close()
    written, _ = launcher.communicate()
    assert sorted(written.splitlines()) == ["[0] for rank 0", "[1] nothing"]


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def nodes(command, path, *counts, **options):
    """Launchers as on several machines."""
    where = ["--nnodes", len(counts), "--rendezvous", f"127.0.0.1:{free_port()}"]
    words = [word for name, value in options.items() for word in (f"--{name}", value)]
    return [
        command("run", "-n", str(count), *map(str, where), *map(str, words), "--node-rank", str(node), path)
        for node, count in enumerate(counts)
    ]


@system
def test_two_machines_number_their_ranks_together_and_share_a_store(command, tmp_path):
    words = ["RANK", "WORLD_SIZE", "GROUP_RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_PORT"]
    path = script(
        tmp_path,
        "import socket",
        "socket.create_connection((os.environ['MASTER_ADDR'], int(os.environ['MASTER_PORT']))).close()",
        f"print(*(os.environ[word] for word in {words}))",
    )
    first, second = nodes(command, path, 1, 2)
    written = [*first.communicate(), *second.communicate()]
    assert (first.returncode, second.returncode) == (0, 0), written
    lines = sorted(written[0].splitlines() + written[2].splitlines())
    (port,) = {line.split()[-1] for line in lines}
    assert lines == [f"[0] 0 3 0 0 1 {port}", f"[1] 1 3 1 0 2 {port}", f"[2] 2 3 1 1 2 {port}"]


@system
def test_a_failure_on_one_machine_ends_the_others_and_is_told_there(command, tmp_path):
    path = script(tmp_path, "if os.environ['RANK'] == '1':\n    raise ValueError('broken')", "time.sleep(600)")
    first, second = nodes(command, path, 1, 1)
    told, failed = first.communicate()[1], second.communicate()[1]
    assert (first.returncode, second.returncode) == (1, 1)
    assert "rank 1 exited with code 1: ValueError: broken" in failed
    assert "torchcomms: node 1 failed: rank 1 exited with code 1: ValueError: broken" in told


@system
def test_a_machine_that_does_not_come_is_named(command, tmp_path):
    where = ["--nnodes", "2", "--rendezvous", f"127.0.0.1:{free_port()}", "--wait", "0.2"]
    alone = command("run", *where, "--node-rank", "0", script(tmp_path, "pass"))
    _, errors = alone.communicate()
    assert alone.returncode == 1
    assert "node 1 did not come to 127.0.0.1" in errors


@system
def test_a_rendezvous_that_is_taken_is_said(command, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        where = f"127.0.0.1:{taken.getsockname()[1]}"
        done = command("run", "--rendezvous", where, script(tmp_path, "pass"))
        _, errors = done.communicate()
    assert done.returncode == 2
    assert "choose another port" in " ".join(errors.replace("│", "").split())


class Ended:
    """A rank that has ended."""

    def __init__(self, number, code, *said):
        self.number, self.code, self.said = number, code, said

    def fate(self):
        return f"ended with {self.code}"


LOST = ("Traceback (most recent call last):", '  File "x"', "torchcomms.errors.PeerFailed: rank 2 died")


@unit
def test_the_reason_is_under_the_last_traceback_also_behind_the_heads_of_torch():
    said = ["Traceback (most recent call last):", "  x", "A: 1", "", "During", *LOST, "afterwards"]
    assert reason(said) == "torchcomms.errors.PeerFailed: rank 2 died"
    assert reason([f"[rank1]: {line}" for line in said]) == "torchcomms.errors.PeerFailed: rank 2 died"
    assert reason(["nothing of that kind"]) == ""


@unit
def test_ranks_that_an_error_names():
    assert named("torchcomms.errors.CommsTimeout: ranks 1, 3 have not come, rank 2 waits") == {1, 2, 3}
    assert named("ValueError: rank 1") == frozenset()


@unit
def test_the_cause_is_who_was_killed_or_who_blames_no_other():
    blaming, own, killed = Ended(0, 1, *LOST), Ended(2, 1, "Traceback (most recent call last):", "E: x"), Ended(1, -9)
    assert causes([blaming, own]) == [own]
    assert causes([blaming, own, killed]) == [killed]
    assert causes([blaming]) == [blaming]
    lines = summary([blaming, killed, own], [own])
    assert lines[0] == "rank 2 ended with 1: E: x"
    assert lines[-1] == "rank 2 is named by the error of rank 0"


@unit
def test_a_progress_bar_keeps_its_carriage_returns():
    found = [(match[1], match[2]) for match in LINE.finditer(b"10%\r20%\r\ndone\npart\r")]
    assert found == [(b"10%", b"\r"), (b"20%", b"\r\n"), (b"done", b"\n")]


@unit
def test_colour_only_on_a_terminal(capsys, monkeypatch):
    printer(prefix=True)(1, False, "plain", "\n")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    printer(prefix=True)(1, False, "coloured", "\n")
    monkeypatch.setenv("NO_COLOR", "1")
    printer(prefix=True)(1, False, "plain again", "\n")
    assert capsys.readouterr().out == "[1] plain\n\x1b[33m[1] \x1b[0mcoloured\n[1] plain again\n"


@unit
@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"nodes": 2, "node": 2, "rendezvous": "a:1"}, "pass 0 to 1"),
        ({"nodes": 2}, "need a rendezvous"),
        ({"rendezvous": "nowhere"}, "not HOST:PORT"),
    ],
)
def test_a_job_that_makes_no_sense_is_refused(fields, words):
    with pytest.raises(InvalidCall, match=words):
        Job(("true",), **fields)


@unit
def test_an_ipv6_rendezvous():
    assert Job(("true",), rendezvous="[::1]:29400").address() == ("::1", 29400)


@unit
def test_the_children_of_a_process_are_found():
    child = subprocess.Popen(["sleep", "600"])
    assert child.pid in leash.children()
    child.kill()
    child.wait()
    assert child.pid not in leash.children()
