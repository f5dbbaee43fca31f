"""The command line: arguments, one module per command, output and progress on a terminal."""
