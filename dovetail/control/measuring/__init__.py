"""What has to be learned before planning, and the learning of it next to what runs."""
