"""Redis and Valkey as they are reached: URLs, clients, connections of loops and processes, pipelines, clusters, sentinels."""
