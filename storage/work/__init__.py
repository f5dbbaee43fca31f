"""The work files of a build: spills, records, assignment, remembered fingerprints."""
