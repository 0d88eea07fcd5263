"""How users reach a controller that runs: the socket, what comes through it, and what is done about it.

The loop itself uses `tending`; whatever uses the loop is `serving`, so nothing is imported here.
"""
