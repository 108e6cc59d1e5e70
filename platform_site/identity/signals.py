"""Signals from lower to higher layers: higher apps connect to them, lower apps send them.

Every signal is sent in the transaction of the change that it announces, so that what a receiver writes commits or rolls
back with it. A receiver that must act afterwards uses `transaction.on_commit`.

| Signal | Sent by | Arguments (all by keyword) |
|---|---|---|
| `environment_ready` | projects | `environment: EnvironmentRef`, `since` (see below) |
| `environment_branched` | projects | `source`, `target: EnvironmentRef`, `data: "none" \\| "full"`, `using` |
| `environment_reset` | projects | `source`, `target: EnvironmentRef`, `data`, `actor` or None, `using` (see below) |
| `environment_deleting` | projects | `environment_id`, `cluster`: marked, unreachable from now on |
| `environment_deleted` | projects | `environment_id`, `cluster`: its schema is dropped (see below) |
| `user_created` | accounts | `user_id`, `pool_id` (None for a platform account) |
| `user_deleting` | accounts | `user_id`, `pool_id`: still exists, with memberships; a receiver may raise |
| `user_deleted` | accounts | `user_id`, `pool_id` (None for a platform account), `actor` of the audit entry |
| `schema_migrated` | rows | `environment`, `version`, `operations: list[str]`, `using` |
| `names_changing` | rows | `environment`, `old_names: OldNames`, `actor`, `beside` (see below) |
| `schema_changing` | rows | `environment`, `old: Schema`, `new: Schema`, `actor`, `beside` (see below) |
| `row_written` | rows | `environment`, `table`, `action`, `row_id`, `using`, `is_due` |
| `run_finished` | functions | `using` |

`environment_reset` is sent in the transaction of the region that replaces what a branch has by what its source has.
`actor` is None where the audit log has the entry already.

`environment_ready` is sent in the control database: from this commit on the environment is reachable. `since` is the
time from which on deleted users may still be named in its rows, None if there are none.

`names_changing` and `schema_changing` are sent before a change of the schema, also of a dry run, outside of its
transaction. Receivers return warnings (a list of `FieldError`) about what still has the old names, or becomes invalid,
and `actor` may read; None may read everything. `beside` has the parts of a configuration that change at the same time:
what they replace or remove needs no warning.

`environment_deleted` alone is sent outside of a transaction, because an environment may have millions of rows:
receivers delete them in their own batches, and may be called again."""

from typing import Final

from django.dispatch import Signal

environment_ready: Final = Signal()
environment_branched: Final = Signal()
environment_reset: Final = Signal()
environment_deleting: Final = Signal()
environment_deleted: Final = Signal()
user_created: Final = Signal()
user_deleting: Final = Signal()
user_deleted: Final = Signal()
schema_migrated: Final = Signal()
names_changing: Final = Signal()
schema_changing: Final = Signal()
row_written: Final = Signal()
run_finished: Final = Signal()
