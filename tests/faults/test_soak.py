"""F28 in its short form, a minute and a half: `python -m tests.faults.soak` is the long one, whose table
docs/explanation/reliability.md keeps."""

import logging

import pytest

from tests.faults.soak import Line, service, shown, soak
from tests.support.timing import within

WARMING = 30.0
"""MB a minute. In so short a time caches still fill, in one web process after the other; the figure, 1 MB, is the long
form's."""


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_f28_load_alone_makes_nothing_grow() -> None:
    logging.getLogger("httpx").setLevel(logging.WARNING)
    with service() as up:
        soaked = soak(up, 90)
    print(shown(soaked))
    tally = soaked.tally
    assert (tally.committed, tally.lost, tally.phantom) == (900, 0, 0)
    assert {answer.split(" ")[1] for answer in soaked.answers} <= {"200", "201", "202", "204"}, soaked.answers
    assert (soaked.zombies, soaked.stuck) == (0, 0)
    first, second = soaked.connections
    assert second <= first * 1.5, "a thread that is called in for the first time brings one for each database"
    assert soaked.age_p99 < within(2.0)
    assert {"web", "worker", "PostgreSQL", "Valkey", "up"} <= {line.kind for line in soaked.lines}

    def grows(line: Line) -> bool:
        # A process of PostgreSQL keeps the files of tables it met open, up to its max_files_per_process.
        opens = line.descriptors > 10 and line.kind != "PostgreSQL"
        return opens or line.slope > WARMING or line.threads > 10

    assert not [line for line in soaked.lines if grows(line)], shown(soaked)
