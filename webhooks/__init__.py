"""Then: subscriptions to events, the relay from the outbox, deliveries and their attempts.

An event is a row of the region's outbox, written in the transaction of the change it tells of. The relay turns it into
one delivery per webhook that wants it, attempts carry a delivery to its receiver, and every event's fate can be looked
up. Everything of an environment lives in its region's database; Redis and Celery only say that there may be work.
"""
