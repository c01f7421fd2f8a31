"""TALK to PostgreSQL: the only code of the core that imports its driver, and only once a store is made."""
