"""Features of videos, and what they are worth: retrieval, nearest neighbours, uniformity."""
