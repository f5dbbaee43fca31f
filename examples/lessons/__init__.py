"""Lessons: scripts in cells (`# %%`), which run as they are and open as notebooks. docs/lessons/index.md lists them."""
