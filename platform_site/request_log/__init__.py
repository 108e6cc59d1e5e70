"""The request log, for members (`GET /v1/logs`) and the operators' timeline. The middleware records entries in memory;
a thread per database writes them in batches, to the region of the verified environment or the control database.
Depends on: platform_site.background, http, identity, postgres.
Used from outside: recording, reader, names, writer."""
