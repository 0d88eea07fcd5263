"""The command line, and the two verbs it shares with Python."""


def main() -> None:
    """Entry point of the command `dovetail`."""
    from dovetail.cli.app import app

    app()
