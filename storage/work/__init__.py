"""The work files of a build, which it makes again if they are lost: records, assignment, remembered fingerprints."""
