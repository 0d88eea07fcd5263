"""The command line. What it does is in `dovetail.verbs`; here it is asked for and shown."""


def main() -> None:
    """Entry point of the command `dovetail`."""
    import atexit
    import gc

    from dovetail.cli.app import app

    # The end is the end: looking once more through all that torch has made takes the interpreter 0.7 s.
    atexit.register(gc.freeze)
    app()
