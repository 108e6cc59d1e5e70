"""`manage.py check` on a host without all sandbox layers, and what happens to functions there."""

import os
import shutil
import subprocess
import sys
from typing import Any

import pytest
from django.core import checks

from functions.checks import check_required_layers, check_runtime
from functions.runtime import launch, sandbox
from functions.runtime.errors import StartFailed
from functions.runtime.pool import Pool
from functions.runtime.programs import Program


def test_missing_sandbox_layer_is_an_error_if_required(monkeypatch: pytest.MonkeyPatch, settings: Any) -> None:
    missing = [wall for wall in sandbox.SANDBOX_LAYERS if wall not in launch.sandbox_layers_of_this_host()]
    assert [message.id for message in check_runtime()] == ["functions.I001"] * len(missing)
    monkeypatch.setattr(
        launch, "sandbox_layers_of_this_host", lambda: ["limits", "no_new_privileges", "uid", "namespaces"]
    )
    (found,) = check_runtime()
    assert (found.id, found.level) == ("functions.I001", checks.INFO)
    assert "landlock" in found.msg
    settings.FUNCTION_REQUIRED_SANDBOX_LAYERS = ["landlock"]
    assert [message.id for message in check_runtime()] == ["functions.E004"]
    assert check_required_layers() == []
    settings.FUNCTION_REQUIRED_SANDBOX_LAYERS = ["moat"]
    assert [message.id for message in check_required_layers()] == ["functions.E003"]


def test_a_host_without_deno_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def nowhere() -> str:
        raise StartFailed("The package deno is not installed.")

    monkeypatch.setattr(launch, "deno", nowhere)
    assert [message.id for message in check_runtime()] == ["functions.E001"]


def test_no_function_runs_without_a_required_sandbox_layer() -> None:
    strict = Pool(
        size=1,
        idle_seconds=30,
        max_calls=10,
        wait_seconds=1,
        required_sandbox_layers=frozenset({"limits", "a wall of the future"}),
    )
    try:
        with pytest.raises(StartFailed, match="a wall of the future"):
            strict.check(Program("k", "env_a", b"export default () => 1", 64))
    finally:
        strict.close()


def _walls_of_nobody(*before: str) -> set[str]:
    """Those available to the user `nobody`, which may not read the virtual environment below /root: only the sandbox_layers, by
    the system's own Python, started by the command `before`."""
    with open(sandbox.__file__) as file:
        program = file.read()
    script = f"""
import json, os, subprocess, sys, tempfile
os.setgroups([]); os.setgid(65534); os.setuid(65534)
report_in, report_out = os.pipe()
spec = {{"report": report_out, "uid": None, "scratch": tempfile.mkdtemp(), "parent": os.getpid(), "limits": {{"RLIMIT_CORE": 0}}}}
done = subprocess.run([sys.executable, "-I", "-S", "-c", {program!r}, json.dumps(spec), "--"], pass_fds=[report_out])
os.close(report_out)
print(done.returncode, os.read(report_in, 1000).decode())
"""
    python = next((path for path in ("/usr/bin/python3", sys.executable) if os.access(path, os.X_OK)), sys.executable)
    done = subprocess.run([*before, python, "-I", "-S", "-c", script], capture_output=True, text=True, cwd="/")
    if not done.stdout:
        pytest.skip(f"nobody may not run {python}, or root may not {before}: {done.stderr[-200:]}")
    code, _, sandbox_layers = done.stdout.partition(" ")
    assert code == "0", done.stderr
    return set(sandbox.json.loads(sandbox_layers))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_ordinary_user_gets_every_sandbox_layer_but_the_uid() -> None:
    sandbox_layers = _walls_of_nobody()
    assert {"limits", "no_new_privileges"} <= sandbox_layers
    assert "uid" not in sandbox_layers


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("unshare"), reason="only root can make /proc read-only")
def test_sandbox_works_the_same_with_a_read_only_proc() -> None:
    read_only = (
        "unshare",
        "-m",
        "sh",
        "-c",
        'mount -o remount,bind,ro /proc || mount -t proc -o ro proc /proc; exec "$@"',
        "-",
    )
    assert _walls_of_nobody(*read_only) == _walls_of_nobody()
