"""Models whose segments stream through a device: what describes them, and how long their steps take."""
