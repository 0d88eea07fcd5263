"""Sharing a cluster: policies that give shares of time to options, and rounds that turn shares into placements."""
