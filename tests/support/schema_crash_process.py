"""A process that changes schemas in children which end by SIGKILL at a failpoint: `python -m tests.support.schema_crash_process`.

It starts Django once and connects to nothing. Each line of JSON on stdin, `{"environment", "document", "failpoint"}`, is
done by a forked child; the answer is a line with the signal that ended it, 0 for none. `"alarm"` ends it after so many
seconds wherever it is then (SIGALRM).
"""

import json
import os
import signal
import sys
from typing import Any

import django


def change(order: dict[str, Any]) -> None:
    from django.conf import settings

    from accounts import audit
    from projects.directory.environments import environment_ref
    from rows.migrate import service as schema_service

    environment = environment_ref(order["environment"])
    assert environment is not None
    settings.FAILPOINT = order["failpoint"]
    settings.SCHEMA_LARGE_TABLE_ROWS = order.get("large", settings.SCHEMA_LARGE_TABLE_ROWS)
    signal.setitimer(signal.ITIMER_REAL, order.get("alarm", 0))
    schema_service.change(environment, order["document"], actor=audit.SYSTEM, confirm=order["confirm"])


def main() -> None:
    django.setup()
    from rows import tasks  # noqa: F401 - so that no child spends its time on importing
    from rows.migrate import service as schema_service  # noqa: F401 - so that no child spends its time on importing

    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            status = 1
            try:
                change(json.loads(line))
                status = 0
            finally:
                os._exit(status)
        _, status = os.waitpid(child, 0)
        print(json.dumps({"signal": os.WTERMSIG(status), "status": os.WEXITSTATUS(status)}), flush=True)


if __name__ == "__main__":
    main()
