"""Access to Redis and Valkey: URLs, clients, connections of loops and processes, pipelines, clusters."""
