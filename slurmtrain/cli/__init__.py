"""The command line: the only place that speaks to a person."""
