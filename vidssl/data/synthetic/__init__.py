"""Data sets made by vidssl: moving digits."""
