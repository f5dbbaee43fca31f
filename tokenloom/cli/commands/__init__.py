"""One module per command: its arguments, what it does, and what it prints."""
