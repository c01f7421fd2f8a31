"""TALK: the only code that imports redis."""
