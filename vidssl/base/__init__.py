"""What everything stands on: errors, types, settings, registries, files, processes."""
