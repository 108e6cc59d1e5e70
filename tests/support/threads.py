"""A system that has no more threads."""

import threading

import pytest


def refuse_new_threads(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """For threads whose names begin with `name`."""
    start = threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        if thread.name.startswith(name):
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)
