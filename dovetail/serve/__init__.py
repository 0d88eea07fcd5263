"""What is done with models that are trained: answering fast, and asking them why."""
