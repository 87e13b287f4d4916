"""What the routes take and answer: declared on each view, held to at each request, and shown as an OpenAPI document.

It is part of ``http`` and may import what that may.
"""
