"""Capabilities beside the core: one folder each. Nothing else imports them; registry.py names their modules."""
