"""Counts the commits of each thread, so that a failed request is repeated only if it has committed nothing.
`DatabaseWrapper._commit` counts; `platform_site.http.views` compares. Statements outside a transaction are not counted:
a service that changes something does so inside `atomic()`."""

import threading


class _Count(threading.local):
    value = 0


_count = _Count()


def commits_of_this_thread() -> int:
    return _count.value


def note_commit() -> None:
    _count.value += 1
