"""A process that makes or deletes projects and branches in children which may be killed: `python -m tests.support.project_crash_process`.

It starts Django once and connects to nothing. For each line of JSON on stdin it forks a child that does one thing, ends it
by SIGKILL where the line says so (at a failpoint, or after some seconds), and answers with a line: `{"signal", "seconds"}`.
"""

import json
import os
import signal
import sys
import time
from io import StringIO
from typing import Any

import django


def do(order: dict[str, Any]) -> None:
    from django.conf import settings
    from django.core.management import call_command

    from accounts import audit
    from projects import services
    from projects.provisioning import branching
    from projects.provisioning import deletion as project_deletion

    settings.FAILPOINT = order.get("failpoint") or ""
    if order["do"] == "create":
        services.create_project(
            account_id=order["account"], name="Mortal", region="us-east-1", plan="team", actor=audit.SYSTEM
        )
    elif order["do"] == "delete":
        services.delete_project(order["project"], actor=audit.SYSTEM)
    elif order["do"] == "finish":
        project_deletion.finish(order["project"])
    elif order["do"] == "branch":
        if order.get("large"):
            settings.BRANCH_AT_ONCE_BYTES = 0
        services.create_branch(
            order["project"], name=order["name"], source_id=order["source"], data="full", actor=audit.SYSTEM
        )
    elif order["do"] == "fill":
        branching.finish(order["environment"])
    elif order["do"] == "reset":
        services.reset_branch(order["environment"], data="full", actor=audit.SYSTEM)
    elif order["do"] == "restore":
        call_command(
            "restore",
            order["file"],
            branch_of=order["project"],
            name=order["name"],
            no_progress=True,
            stdout=StringIO(),
        )
    elif order["do"] == "restore into":
        call_command(
            "restore", order["file"], into=order["environment"], replace=True, no_progress=True, stdout=StringIO()
        )
    elif order["do"] == "import":
        call_command(
            "import_rows", order["environment"], order["table"], order["file"], no_progress=True, stdout=StringIO()
        )
    elif order["do"] == "apply config":
        from tests.support.client import Api

        settings.ALLOWED_HOSTS = ["testserver"]
        answer = Api().post("/v1/config/apply", token=order["key"], json=order["body"])
        assert answer.status == 200, answer.json
    elif order["do"] == "delete environment":
        services.delete_environment(order["project"], order["environment"], actor=audit.SYSTEM)
    else:
        raise ValueError(order["do"])


def main() -> None:
    django.setup()
    from projects import services, tasks  # noqa: F401 - so that no child spends its time on importing

    for line in sys.stdin:
        order = json.loads(line)
        began = time.monotonic()
        child = os.fork()
        if child == 0:
            status = 1
            try:
                do(order)
                status = 0
            finally:
                os._exit(status)
        if (after := order.get("kill_after")) is not None:
            time.sleep(after)
            os.kill(child, signal.SIGKILL)  # not reaped yet, so the number is still the child's
        _, status = os.waitpid(child, 0)
        killed = os.WTERMSIG(status) if os.WIFSIGNALED(status) else 0
        if not killed and os.WEXITSTATUS(status):
            killed = -1
        print(json.dumps({"signal": killed, "seconds": time.monotonic() - began}), flush=True)


if __name__ == "__main__":
    main()
