"""The Spark half: one module a job. Imports nothing of ``api``: what passes between them is tables and the topic."""
