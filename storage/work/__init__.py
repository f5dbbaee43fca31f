"""The work files of a build, which it writes again if they are lost: records, assignment, remembered fingerprints."""
