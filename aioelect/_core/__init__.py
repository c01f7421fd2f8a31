"""DECIDE: pure rules. No clock, no randomness, no I/O; times, answers and random numbers arrive as arguments."""
