"""Each store's state in this process, and what keeps it fresh: the lake behind it, the topic ahead of it.

It imports ``engine``. Readers take a :class:`api.replica.snapshot.Snapshot`, which needs neither the lake nor Kafka to be there, and
never wait for what brings it up to date. By the law it is what the next MERGE will make of the same events.
"""
