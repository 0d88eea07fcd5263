"""The door to the machine's C compiler: a source file becomes a loaded library, once a process. Knows no kernel."""

from dovetail.native.compiled import load_library

__all__ = ["load_library"]
