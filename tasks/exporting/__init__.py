"""Export the documents of a version into the files of other trainers.

documents                   the documents of a split over its shards, streamed and checked
export                      plans, writes the units of an export, resumes one
base                        the interface of a format, and the files, hashed while they are written
streams, tables             the formats
"""
