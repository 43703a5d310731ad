"""What runs inside the job: standard library only, frozen into the run directory at submission."""
