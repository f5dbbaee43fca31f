"""Marks: what files of other tools say about documents, and how many copies of each a version has."""
