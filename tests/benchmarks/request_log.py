"""What the request log costs of a retrieve: `python -m tests.benchmarks.request_log`.

CPU time of this process, in microseconds, the smallest of several rounds: for a retrieve without the log, for recording
an entry, for writing one in a batch, and for a read that is only counted. The target is at most 3 % of a retrieve.
"""

import time
from collections.abc import Callable
from itertools import cycle, islice

from tests.benchmarks.calls import answers
from tests.benchmarks.measured_service import stage

ROUNDS, REQUESTS, WARM = 9, 500, 500


def microseconds(work: Callable[[], object], times: int) -> float:
    """CPU time of one of the `times` that `work` does something."""
    began = time.process_time()
    work()
    return (time.process_time() - began) / times * 1e6


def main() -> None:
    with stage(workers=1) as on:
        from django.test import RequestFactory

        from platform_site.fastpath import routes
        from platform_site.http.requests import open_request
        from platform_site.identity.callers import Caller
        from platform_site.request_log import recording
        from platform_site.request_log.writer import Writer
        from tests.benchmarks import rows

        answer, using = answers(), on.setting.place.cluster
        asked = list(islice(cycle(rows.questions(on.setting, on.port)["retrieve"][0]), REQUESTS))

        def retrieve() -> None:
            for request in asked:
                answer(request)

        for request in islice(cycle(asked), WARM):
            answer(request)
        retrieves = min(microseconds(retrieve, REQUESTS) for _ in range(ROUNDS))

        queue = recording.queues[using] = recording.Queue()
        writer = Writer(using, queue)
        request = RequestFactory().get("/v1/rows/tasks/tas_1")
        request.resolver_match = routes.resolve(request.path)
        request.__dict__["caller"] = Caller("key", "key_1", frozenset(), place=on.setting.place)
        open_request()

        def record(environment_id: str, first: int) -> None:
            for _ in range(REQUESTS):
                queue.tallies[environment_id] = recording.Tally(reads=first)
                recording.record(request, "GET", 200, 0.001, None)

        environment_id = on.setting.place.environment_id
        recorded, written, counted = [], [], []
        for _ in range(ROUNDS):
            counted.append(microseconds(lambda: record(environment_id, recording.READS_PER_SECOND), REQUESTS))
            recorded.append(microseconds(lambda: record(environment_id, 0), REQUESTS))
            written.append(microseconds(writer.write, REQUESTS))
        for what, cost in (
            ("retrieve", retrieves),
            ("an entry recorded", min(recorded)),
            ("an entry written", min(written)),
            ("a read that is only counted", min(counted)),
        ):
            print(f"{what:30}{cost:8.1f} µs{100 * cost / retrieves:8.2f} %", flush=True)


if __name__ == "__main__":
    main()
