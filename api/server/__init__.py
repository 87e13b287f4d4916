"""Processes and sockets: the app under uvicorn, in workers that share nothing but the lake.

Uvicorn is in this room alone. No caller has a thread for being slow: what a caller may take of
time and memory is bounded here, before the app is asked. The process that looks after the workers has none of the app.
"""
