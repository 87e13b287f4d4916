"""Tasks, a job in parts: what is asked for, the runs of the rules, and what is due, all of them over one table.

It imports ``jobs/spark`` alone. ``job`` puts the parts in order, and says what a crash after each of its steps leaves behind. A task
is sent at least once, with the same id, and only once the states know all that was in the topic when it was due.
"""
