"""Several instances that share the keys: who is there, who has what, and asking them.

It imports ``engine``, ``replica`` and ``reads``, and is the one room that knows urllib3. A request never goes on to a third
instance, and one that does not answer is not waited for: another one that has the keys is asked.
"""
