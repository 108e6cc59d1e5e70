"""Metrics of the console's first page, collected by those who see the events, and summed up every few seconds.

    web processes   `traffic`: their own counts of requests, added up by endpoint in buckets of five minutes
    a worker        `rollups`: outcomes of each region's deliveries and runs, and the lengths of its queues
    a scrape        `lag`: how long the oldest item of each queue has waited, and a worker's last heartbeat

Everything is in a few thousand rows of the control database (`platform_site.models`), so the page reads one database
and no large table, and an unavailable region still shows its last metrics. Only the console and monitoring use them."""
