"""Reading what training programs print."""
