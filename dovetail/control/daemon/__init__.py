"""How users reach a controller that runs: the socket, what comes through it, and what is done about it.

The loop itself uses `requests`; whatever uses the loop is `serving`, so nothing is imported here.
"""
