"""What the floors below say upward: apps above connect to these, the app below sends them and knows nobody by name.

Every signal is sent inside the transaction of the change it announces, so that what a receiver writes commits or rolls
back with it. A receiver that must act afterwards uses `transaction.on_commit`.

| Signal | Sent by | Arguments (all by keyword) |
|---|---|---|
| `environment_ready` | projects | `place: Place`, `since` (see below) |
| `environment_branched` | projects | `source: Place`, `target: Place`, `data: "none" \\| "full"`, `using` |
| `environment_deleting` | projects | `environment_id`, `cluster`: marked, nobody can reach it any more |
| `environment_deleted` | projects | `environment_id`, `cluster`: its schema is gone (see below) |
| `user_created` | accounts | `user_id`, `pool_id` (None for a platform account) |
| `user_deleting` | accounts | `user_id`, `pool_id`: still there, with memberships; who refuses raises |
| `user_deleted` | accounts | `user_id`, `pool_id` (None for a platform account), `actor` of the trail |
| `schema_migrated` | rows | `place`, `version`, `operations: list[str]`, `using` |
| `row_written` | rows | `place`, `table`, `action`, `row_id`, `using` |
| `run_finished` | functions | `using` |

`environment_ready` is sent in the control database: from this commit on the environment can be reached. `since` is the
moment from which on users who were deleted may still be named in its rows, None if there are none.

`environment_deleted` alone is sent in no transaction, since what an environment left may be a million rows: receivers
delete what they keep of it in batches of their own, and may be called again.
"""

from typing import Final

from django.dispatch import Signal

environment_ready: Final = Signal()
environment_branched: Final = Signal()
environment_deleting: Final = Signal()
environment_deleted: Final = Signal()
user_created: Final = Signal()
user_deleting: Final = Signal()
user_deleted: Final = Signal()
schema_migrated: Final = Signal()
row_written: Final = Signal()
run_finished: Final = Signal()
