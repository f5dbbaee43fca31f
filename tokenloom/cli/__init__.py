"""The command line: arguments, one module a command, output and progress on a terminal."""
