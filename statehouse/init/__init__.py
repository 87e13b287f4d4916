"""A ``statehouse.yaml`` from what a topic or a file has: :mod:`~statehouse.init.sample` reads records, :mod:`~statehouse.init.shapes`
finds columns and types, :mod:`~statehouse.init.roles` finds key, time, agent and value, :mod:`~statehouse.init.writing` writes the file.
"""
