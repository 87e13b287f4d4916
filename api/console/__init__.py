"""Pages for people: a module a screen, templates, and what a browser loads.

A screen is at the address of what it shows: who accepts HTML gets the screen, everyone else the JSON. It asks the API what any
caller may ask (:func:`api.console.screens.ask`), with the rights of who looks at it, and shows the answer. So this room knows the API's
paths and documents, and nothing that is behind them, but for the stream of changes on the home page. No page loads anything from another host, and none needs JavaScript to be read.
"""
