"""Metrics of the console's first page and `/metrics`: `traffic` (requests by endpoint, from web processes), `rollups`
(regions, by a worker), `lag` (queues' oldest items and heartbeats). All of it is in the control database
(`platform_site.models`), so an unavailable region shows its last metrics."""
