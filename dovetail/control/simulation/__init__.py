"""A stream of tasks on a shared cluster, simulated: where streams come from, the run of one, what came of it."""
