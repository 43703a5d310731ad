"""Pure decisions and the values they work on: no clock, no file, no process, no environment, no randomness."""
