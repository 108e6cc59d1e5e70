"""Records that were read from PostgreSQL, until the next round trip to Redis writes them."""

import time

from platform_site.redis import client as redis_client
from projects.api import pending_records


def written_after_reading(name: str, read_at: float) -> bool:
    pending_records.add(read_at, name, b"read")
    trip = redis_client.round_trip()
    pending_records.put_on(trip)
    kept = trip.get(name)
    assert trip.run()
    return kept.value is not None


def test_a_record_of_before_a_lost_connection_is_not_written() -> None:
    """Redis may have been restarted since, and have forgotten what was revoked since it was read."""
    store, name = redis_client.current(), f"test:{time.monotonic()}"
    assert written_after_reading(f"{name}:usual", time.monotonic())
    read_at = time.monotonic()
    store._drop_idle()
    assert not written_after_reading(f"{name}:before", read_at)
    assert written_after_reading(f"{name}:after", time.monotonic())


def test_a_record_that_has_waited_for_long_is_not_written() -> None:
    assert not written_after_reading(f"test:{time.monotonic()}", time.monotonic() - pending_records._FILL_WITHIN)
