"""Which examples of a training set teach: how they are scored, chosen and judged, and the students that do it.

The students are trained by ordinary tasks (`student.py`); `verbs/select_examples.py` says which, and runs them.
"""
