"""What a stream's payloads are written in, where it is not JSON.

A module a format, which makes the stream's columns out of a payload's bytes. All of them give the values and the reasons that the same
object has as JSON (:mod:`statehouse.payload`). They run in Spark's Python workers and in the API. No decoder asks a registry: it
holds the schemas that it knows, and says of a record that its schema is not among them (:data:`statehouse.formats.format.UNKNOWN`).
"""
