"""The routes and the layers around them: the one room that turns requests into questions and answers into responses.

It imports every room below it; Flask is in this room and in ``console`` alone. What a view needs of the request at hand is in
``context``, every error leaves by ``problems``, and no route takes a parameter that is not declared.
"""
