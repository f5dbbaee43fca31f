"""Stores: local folders and object stores behind one interface; their uploads, listings and errors."""
