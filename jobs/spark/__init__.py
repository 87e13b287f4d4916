"""What is about Spark, Delta and Kafka's sink and is no job: the session, the tables' making, what the changelog has new, expressions.

It imports no job, so that every job may import it. What it gives is a frame, a column, SQL or a table; when a thing is done, and what a
crash leaves behind, is for the jobs to say.
"""
