"""Counts each thread's commits, of transactions (`DatabaseWrapper._commit`) and of runs (`StatementBatcher`), so that
`platform_site.http.views` only repeats a request that has committed nothing."""

import threading


class _Count(threading.local):
    value = 0


_count = _Count()


def commits_of_this_thread() -> int:
    return _count.value


def note_commit() -> None:
    _count.value += 1
