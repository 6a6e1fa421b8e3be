"""Pages for a browser, charts, and images of videos."""
