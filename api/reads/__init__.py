"""Questions: of a store's state, of the lake behind it, and in SQL.

It imports ``engine`` and ``replica``. What is asked comes as arguments, also whether the caller is still there. An answer is
bounded in rows, bytes and time, or it is a problem.
"""
