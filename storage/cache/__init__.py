"""The local cache for shards of remote stores."""
