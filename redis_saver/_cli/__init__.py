"""The command line `redis-saver`: a module for each command, or kind of commands."""
