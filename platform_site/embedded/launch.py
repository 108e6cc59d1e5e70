"""Runs a command that dies with its parent, optionally as another user: `python launch.py [--user NAME] [--signal N] --
COMMAND…`. A program of its own: its steps between fork and exec are unsafe in a process with threads. Another user
keeps DAC_OVERRIDE (Linux), for a data directory below `/root`."""

import ctypes
import os
import pwd
import signal
import sys

PR_SET_PDEATHSIG = 1
PR_SET_NAME = 15
PR_SET_CHILD_SUBREAPER = 36
PR_SET_KEEPCAPS = 8
PR_CAP_AMBIENT = 47
PR_CAP_AMBIENT_RAISE = 2
CAP_DAC_OVERRIDE = 1
LINUX_CAPABILITY_VERSION_3 = 0x20080522


class _Header(ctypes.Structure):
    _fields_ = [("version", ctypes.c_uint32), ("pid", ctypes.c_int)]


class _Data(ctypes.Structure):
    _fields_ = [("effective", ctypes.c_uint32), ("permitted", ctypes.c_uint32), ("inheritable", ctypes.c_uint32)]


def _checked(result: int, what: str) -> None:
    if result != 0:
        raise OSError(ctypes.get_errno(), f"{what}: {os.strerror(ctypes.get_errno())}")


def become(user: str) -> None:
    entry = pwd.getpwnam(user)
    libc = ctypes.CDLL(None, use_errno=True)
    _checked(libc.prctl(PR_SET_KEEPCAPS, 1, 0, 0, 0), "keep capabilities")
    os.setgroups([])
    os.setgid(entry.pw_gid)
    os.setuid(entry.pw_uid)
    bit = 1 << CAP_DAC_OVERRIDE
    data = (_Data * 2)(_Data(bit, bit, bit), _Data(0, 0, 0))
    _checked(libc.capset(ctypes.byref(_Header(LINUX_CAPABILITY_VERSION_3, 0)), data), "set capabilities")
    _checked(libc.prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, CAP_DAC_OVERRIDE, 0, 0), "raise capability")


def die_with_parent(parent: int, death_signal: int) -> None:
    """Have the kernel send `death_signal` when the starting thread of `parent` ends (Linux)."""
    if sys.platform != "linux":
        return
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, death_signal, 0, 0, 0)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGTERM)


def name_process(name: str) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_NAME, name.encode(), 0, 0, 0)


def adopt_orphans() -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def launcher(death_signal: signal.Signals | None = None, user: str | None = None) -> list[str]:
    """The command prefix that runs a command by this program."""
    options = ["--user", user] if user else []
    if death_signal:
        options += ["--signal", str(int(death_signal))]
    return [sys.executable, "-I", "-S", __file__, *options, "--"]


def main(arguments: list[str]) -> None:
    at = arguments.index("--")
    options, command = arguments[:at], arguments[at + 1 :]
    parent = os.getppid()
    if "--user" in options:
        become(options[options.index("--user") + 1])
    if "--signal" in options:
        die_with_parent(parent, int(options[options.index("--signal") + 1]))
    os.execv(command[0], command)  # noqa: S606 - the point of this program


if __name__ == "__main__":
    main(sys.argv[1:])
