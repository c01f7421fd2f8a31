"""`aioelect doctor`: probes gather facts by doing, one pure function makes findings of them, a table shows those."""
