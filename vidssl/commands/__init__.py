"""The console command and the jobs of its sub-commands."""
