"""Searches: tasks asked for as the results of others come, by Optuna's samplers or as generations of a population."""
