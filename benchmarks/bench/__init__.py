"""The bench: aioelect beside what a user would pick instead, on one server in one run."""
