"""Whole jobs: what a tool does between parsing its arguments and exiting."""
