"""Messages of builds: what one did, and why one could not succeed."""
