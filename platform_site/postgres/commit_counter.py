"""How many transactions this thread has committed: what tells a request that may run again from one that must not.

`DatabaseWrapper._commit` counts; `platform_site.http.views` compares. Statements outside a transaction are not counted:
a service that changes something does so inside `atomic()`.
"""

import threading


class _Count(threading.local):
    value = 0


_count = _Count()


def commits_of_this_thread() -> int:
    return _count.value


def note_commit() -> None:
    _count.value += 1
