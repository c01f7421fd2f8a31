"""A command that runs under a claim: started, stopped and killed in time, with everything that descends from it."""
