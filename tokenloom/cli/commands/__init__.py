"""A module a command: its arguments, what it does, and what it prints."""
