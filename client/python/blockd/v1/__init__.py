"""The messages of the wire contract, generated from proto/blockd/v1 (client/python/generate.sh)."""
