"""The request log: one entry for each request, for members (`GET /v1/logs`) and for the operators' timeline. The
middleware records an entry in memory; a thread for each database writes them in batches. Entries are in the region of
the environment whose credential was verified, or in the control database if there was none."""
