"""A run's life as pure functions: the table of phases, the reducer over its journal, the plan of the next actions."""
