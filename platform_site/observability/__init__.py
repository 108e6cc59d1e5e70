"""Figures that the console's first page reads: counted by those who see things happen, summed up every few seconds.

    web processes   `traffic`: their own counts of requests, added up by endpoint in buckets of five minutes
    a worker        `rollups`: what each region's deliveries and runs came to, and how long its queues are
    a scrape        `lag`: how long the oldest of each queue has waited, and when a worker was last heard of

Everything lies in a few thousand rows of the control database (`platform_site.models`), so the page asks one database
and no large table, and a region that is away leaves its last figures behind. Nothing but the console and monitors
depends on them.
"""
