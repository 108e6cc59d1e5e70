"""What `manage.py up`'s supervisor does where no part of it behaves. In a process of its own: it takes the signals."""

import subprocess
import sys
from textwrap import dedent

from tests.support.service import ROOT
from tests.support.timing import within

_BEGIN = """
import os, signal, subprocess, sys
from platform_site.embedded.supervisor import SupervisedProcess, Supervisor

def fails(output):
    raise OSError("no such program")

supervisor = Supervisor(lambda text: None, colour=False, changed=lambda pids: None)
"""


def _in_a_process(script: str) -> None:
    program = [sys.executable, "-c", _BEGIN + dedent(script)]
    subprocess.run(program, cwd=ROOT, check=True, timeout=within(20))


def test_a_part_that_cannot_be_started_leaves_nothing_open() -> None:
    _in_a_process("""
        part = SupervisedProcess("web", fails, signal.SIGTERM, 1.0)
        before = sorted(os.listdir("/dev/fd"))
        for _ in range(3):
            try:
                supervisor.start(part)
            except OSError:
                pass
        assert sorted(os.listdir("/dev/fd")) == before
        """)


def test_an_orphan_with_the_pid_of_a_buried_part_is_buried_too() -> None:
    """Looked at for ever otherwise: the part's Popen waits for nothing any more."""
    _in_a_process("""
        sleepy = lambda: subprocess.Popen([sys.executable, "-c", "pass"])
        part = SupervisedProcess("web", lambda output: sleepy(), signal.SIGTERM, 1.0)
        supervisor.start(part)
        part.process.wait()
        orphan = sleepy()
        os.waitid(os.P_PID, orphan.pid, os.WEXITED | os.WNOWAIT)
        part.process.pid = orphan.pid
        supervisor._reap_children()
        try:
            os.waitpid(orphan.pid, 0)
            raise SystemExit("it was left")
        except ChildProcessError:
            pass
        orphan.returncode = 0
        """)


_ENDS_AT_ONCE = """
    from platform_site.embedded import supervisor as module
    module._TRIES = 2
    starts = []

    def spawn(output):
        starts.append(subprocess.Popen(["true"]))
        if len(starts) == 5:
            supervisor._stops = 1
        return starts[-1]

    part = SupervisedProcess("postgres", spawn, signal.SIGINT, 1.0)
    supervisor.start(part)
    """


def test_a_part_that_never_worked_is_given_up() -> None:
    given_up = """
    try:
        supervisor.run()
        raise SystemExit("it was started for ever")
    except module.ProcessFailed:
        assert len(starts) == 3
    """
    _in_a_process(_ENDS_AT_ONCE + given_up)


def test_a_part_that_has_worked_is_started_until_it_works_again() -> None:
    """A disk may stay full for an hour."""
    goes_on = """
    assert supervisor.run_until(lambda: True, seconds=1)
    supervisor.run()
    assert len(starts) == 5
    """
    _in_a_process(_ENDS_AT_ONCE + goes_on)
