"""What works on rows, keys and tables: DuckDB, Arrow, Delta and JSON, without a store's state.

It imports ``errors`` alone, and knows neither Flask nor another host. What it gives is as Spark has it, or it is refused; what takes
long ends at its deadline.
"""
