"""The run directory: the truth about a run, safe on NFS and Lustre."""
