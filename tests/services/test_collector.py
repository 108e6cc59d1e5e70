"""`manage.py` imports with the garbage collector off; a process that continues turns it on again, or would grow for
ever."""

import gc
import multiprocessing
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from django.core.management import call_command
from django.db import connections

from platform_site.celery import app
from platform_site.embedded import up
from platform_site.management.commands import migrate, serve, work
from platform_site.server import worker as web_worker
from platform_site.server.application import application
from tests.support.service import ROOT


@pytest.fixture(autouse=True)
def _as_manage_py_left_it() -> Iterator[None]:
    thresholds = gc.get_threshold()
    gc.disable()
    yield
    gc.unfreeze()
    gc.set_threshold(*thresholds)
    gc.enable()


@pytest.mark.django_db(databases="__all__")
def test_the_main_process_of_the_web_collects(monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[bool] = []
    for name in ("reset", "open_metrics_file"):
        monkeypatch.setattr(serve.metrics, name, lambda: None)
    monkeypatch.setattr(serve.Command, "_check_versions", lambda self: None)
    monkeypatch.setattr(serve, "serve", lambda *_, **__: found.append(gc.isenabled()))
    call_command("serve", "--port", "0", "--workers", "1")
    assert found == [True]


def test_a_web_process_collects_but_seldom_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    context = multiprocessing.get_context("fork")
    found, seen = context.Pipe(duplex=False)

    def load() -> None:
        seen.send((gc.isenabled(), gc.get_threshold()[2]))
        os._exit(0)

    monkeypatch.setattr(application, "load", load)
    gc.enable()
    process = context.Process(target=web_worker.work, args=(None, [], None, os.getpid()))
    process.start()
    assert found.poll(30)
    assert found.recv() == (True, web_worker.FULL_COLLECTIONS)
    process.join(30)


@pytest.mark.exhaustive
def test_a_worker_collects(monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[bool] = []
    monkeypatch.setattr(work.metrics, "open_metrics_file", lambda: None)

    class Worker:
        exitcode = 0

        def __init__(self, **_: object) -> None:
            pass

        def start(self) -> None:
            found.append(gc.isenabled())

    monkeypatch.setattr(app, "Worker", Worker)
    with pytest.raises(SystemExit):
        call_command("work")
    assert found == [True]


@pytest.mark.exhaustive
def test_up_collects_after_its_import() -> None:
    imports = up._ImportThread(lambda: None)
    imports.start()
    imports.join()
    assert not gc.isenabled()
    imports.prepare_forks()
    assert gc.isenabled()


@pytest.mark.parametrize(("command", "expected"), [("serve", "False"), ("work", "False"), ("migrate", "True")])
def test_only_these_two_begin_without_it(command: str, expected: str) -> None:
    code = f"""
import gc, runpy, sys
from django.core.management import ManagementUtility
ManagementUtility.execute = lambda self: print(gc.isenabled())
sys.argv = ["manage.py", "{command}"]
runpy.run_path({str(ROOT / "manage.py")!r}, run_name="__main__")
"""
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert said.stdout.strip() == expected


@pytest.mark.django_db(databases="__all__", transaction=True)
def test_migrations_do_not_wait_for_the_disk_and_requests_afterwards_do() -> None:
    def source() -> Any:
        with connections["us-east-1"].cursor() as cursor:
            cursor.execute("SELECT setting, source FROM pg_settings WHERE name = 'synchronous_commit'")
            return cursor.fetchone()

    with migrate._locked("us-east-1"):
        assert source() == ("off", "session")
    assert source()[1] != "session"
