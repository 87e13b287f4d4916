"""The commands, a module a theme. Each imports Spark, DuckDB or Flask only when it runs, so that ``--help`` is there at once.

A new command is a function in one of these modules, decorated with :func:`statehouse.commands.base.command`; its module is
named in :mod:`statehouse.cli`.
"""
