"""Events on their way to Kafka: what a caller may send, once for each Idempotency-Key, and acknowledged before it is answered.

It imports ``engine`` and ``errors`` alone: writes go on whether a state can be read or not.
"""
