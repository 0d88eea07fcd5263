"""The door to the machine's C compiler: a source becomes a loaded library; and the one kernel that several rooms need,
which numbers texts."""

from dovetail.native.compiled import WIDEST_VECTORS, load_library
from dovetail.native.library_cache import cached_library

__all__ = ["WIDEST_VECTORS", "cached_library", "load_library"]
