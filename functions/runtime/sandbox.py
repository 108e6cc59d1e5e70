"""Apply the sandbox layers (docs/explanation/functions-internals.md), then exec Deno, if it is given:
`python -I -S sandbox.py SPEC-JSON -- DENO ARGUMENTS…`. This program uses the standard library alone. What the host does
not permit is left out, and the list of what is active goes to the parent as one JSON line on the descriptor `report`.
SPEC: {"report": fd, "uid": int | null, "scratch": path, "limits": {"RLIMIT_X": value}, "parent": pid}"""

import contextlib
import ctypes
import json
import os
import resource
import signal
import struct
import sys

CLONE_NEWUSER, CLONE_NEWNET, CLONE_NEWIPC, CLONE_NEWUTS = 0x10000000, 0x40000000, 0x08000000, 0x04000000
PR_SET_PDEATHSIG, PR_SET_NO_NEW_PRIVS = 1, 38
LANDLOCK_CREATE_RULESET, LANDLOCK_ADD_RULE, LANDLOCK_RESTRICT_SELF = 444, 445, 446  # the same on every architecture
LANDLOCK_RULE_PATH_BENEATH = 1

# linux/landlock.h: file access rights, bit by bit
EXECUTE, WRITE_FILE, READ_FILE, READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
ALL_FILE_RIGHTS = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 4: (1 << 15) - 1, 5: (1 << 16) - 1}
TRUNCATE, IOCTL = 1 << 14, 1 << 15
ALL_NETWORK_RIGHTS = 0b11  # to bind and to connect TCP sockets
ALL_SCOPES = 0b11  # abstract Unix sockets, signals
SYSTEM_LIBRARIES = ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/etc/ld.so.cache")
DEVICES = ("/dev/null", "/dev/urandom", "/dev/random", "/dev/zero")

SANDBOX_LAYERS = ("namespaces", "limits", "uid", "no_new_privileges", "landlock")
"""In the order in which they are applied."""

libc = ctypes.CDLL(None, use_errno=True)


def own_namespaces() -> str | None:
    """Enter new network, IPC and UTS namespaces. An unprivileged user needs a user namespace for that, where mapping
    its uid and gid is optional: some hosts refuse the mapping alone (AppArmor on Ubuntu 24.04, a read-only /proc)."""
    wanted = CLONE_NEWNET | CLONE_NEWIPC | CLONE_NEWUTS
    if os.geteuid() == 0:
        return "namespaces" if libc.unshare(wanted) == 0 else None
    uid, gid = os.getuid(), os.getgid()
    if libc.unshare(wanted | CLONE_NEWUSER) != 0:
        return None
    for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
        with contextlib.suppress(OSError), open(f"/proc/self/{name}", "w") as file:
            file.write(text)
    return "namespaces"


def landlock(program: str, scratch: str) -> str | None:
    """Restrict file access to `program`, the system's libraries (read, execute), DEVICES and `scratch` (read, write);
    where the kernel can, also forbid TCP and signals to other processes."""
    abi = libc.syscall(LANDLOCK_CREATE_RULESET, None, 0, 1)
    if abi < 1:
        return None
    rights = ALL_FILE_RIGHTS.get(abi, ALL_FILE_RIGHTS[5])
    fields = [rights]  # of `struct landlock_ruleset_attr`, as far as this kernel knows them
    if abi >= 4:
        fields.append(ALL_NETWORK_RIGHTS)
    if abi >= 6:
        fields.append(ALL_SCOPES)
    attributes = struct.pack(f"={len(fields)}Q", *fields)
    ruleset = libc.syscall(LANDLOCK_CREATE_RULESET, attributes, len(attributes), 0)
    if ruleset < 0:
        return None

    def allow(path: str, allowed: int) -> bool:
        try:
            descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
        except OSError:
            return True  # not on this system
        if not os.path.isdir(path):
            allowed &= EXECUTE | WRITE_FILE | READ_FILE | TRUNCATE | IOCTL
        rule = struct.pack("=Qi", allowed & rights, descriptor)
        done = libc.syscall(LANDLOCK_ADD_RULE, ruleset, LANDLOCK_RULE_PATH_BENEATH, rule, 0)
        os.close(descriptor)
        return bool(done == 0)

    readable = EXECUTE | READ_FILE | READ_DIR
    paths = [(program, readable), *((path, readable) for path in SYSTEM_LIBRARIES)]
    paths += [(path, READ_FILE | WRITE_FILE) for path in DEVICES]
    paths.append((scratch, rights & ~EXECUTE))
    if not all([allow(path, allowed) for path, allowed in paths]):
        return None
    return "landlock" if libc.syscall(LANDLOCK_RESTRICT_SELF, ruleset, 0) == 0 else None


def limits(wanted: dict[str, int]) -> str:
    """Hard resource limits; a lower one that already holds stays."""
    for name, value in wanted.items():
        number = getattr(resource, name, None)
        if number is None:
            continue
        hard = resource.getrlimit(number)[1]
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(number, (value, value))
    return "limits"


def main(arguments: list[str]) -> None:
    spec = json.loads(arguments[0])
    command = arguments[arguments.index("--") + 1 :]
    sandbox_layers = []
    # Opened while its directory is still accessible (`/root` is 0700); executed by its descriptor.
    path = command[0] if command else sys.executable
    program = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    if sys.platform == "linux":
        sandbox_layers.append(own_namespaces())
    os.nice(5)
    sandbox_layers.append(limits(spec["limits"]))
    if spec["uid"] is not None:
        os.setgroups([])
        os.setgid(spec["uid"])
        os.setuid(spec["uid"])
        sandbox_layers.append("uid")
    if sys.platform == "linux":
        if libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0:
            sandbox_layers.append("no_new_privileges")
        sandbox_layers.append(landlock(path if spec["uid"] is None else f"/proc/self/fd/{program}", spec["scratch"]))
        libc.prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
        if os.getppid() != spec["parent"]:  # it died before the request could take effect
            os.kill(os.getpid(), signal.SIGKILL)
    os.write(spec["report"], json.dumps([layer for layer in sandbox_layers if layer]).encode() + b"\n")
    os.close(spec["report"])
    if not command:
        return
    os.chdir(spec["scratch"])
    environment = {"PATH": "/nonexistent", "HOME": spec["scratch"], "TMPDIR": spec["scratch"]}
    environment |= {"DENO_DIR": spec["scratch"] + "/deno", "NO_COLOR": "1", "DENO_NO_UPDATE_CHECK": "1"}
    if os.execve in os.supports_fd:
        os.execve(program, command, environment)  # noqa: S606 - the point of this program
    os.execve(command[0], command, environment)  # noqa: S606


if __name__ == "__main__":
    main(sys.argv[1:])
