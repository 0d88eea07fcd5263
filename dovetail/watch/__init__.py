"""Which combinations of attributes are behind an outcome: tables and statistics. Knows no torch, store or task."""
