"""Pipelines: which layers make up each stage (`partition`), and which rank does what in which order (`timetables`)."""
