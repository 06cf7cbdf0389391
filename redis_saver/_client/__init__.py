"""How Redis and Valkey are reached: URLs, clients, connections of loops and processes, pipelines, clusters."""
