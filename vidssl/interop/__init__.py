"""Adapters to other projects' tools; nothing in vidssl imports them, and each needs its tool."""
