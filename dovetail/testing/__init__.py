"""Conformance suites for those who write a technique, an engine or a store, and the small programs they run.

Each suite is a class of pytest tests that states what every implementation must hold. Make a subclass whose name
begins with `Test`, give it what its docstring asks for, and run pytest. Needs pytest, and no plug-in of it.
"""
