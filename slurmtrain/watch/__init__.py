"""What runs outside the jobs and looks after all of them."""
